package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"subjectbroker/cmd/sbctl/internal/agents/copies"
	"subjectbroker/cmd/sbctl/internal/content"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// What happens to a value that is imported.
const (
	wouldSeal   = "would be sealed"
	sealed      = "sealed"
	sealedAnew  = "changed"   // a new version of a name that an earlier import made
	sealedSame  = "unchanged" // sealed by an earlier import
	leftAsItIs  = "left"
	wouldUpdate = "sealed already" // by an earlier import; a changed value becomes a new version
)

// importItem is one value that an import looks at, and its JSON shape.
type importItem struct {
	Server  string `json:"server,omitempty"`
	Project string `json:"project,omitempty"`
	Table   string `json:"table,omitempty"`
	Key     string `json:"key"`
	Line    int    `json:"line"`

	ResourceID string `json:"resourceId,omitempty"`
	Version    uint32 `json:"version,omitempty"`
	Result     string `json:"result"`
	Reason     string `json:"reason,omitempty"` // why it is sealed, or left

	value  content.Bytes // nil: left as it is
	base   string        // the name it gets where that is free
	source string        // where it comes from: the same source keeps its name
	found  bool          // its name was made by an earlier import of the same source
	same   int           // index of an earlier item with the same value; -1: none
}

// importView is the JSON shape of an import.
type importView struct {
	File      string       `json:"file"`
	DryRun    bool         `json:"dryRun"`
	Rewritten bool         `json:"rewritten"`
	Items     []importItem `json:"items"`
	Grants    []string     `json:"grants"` // capabilities that the subject got
	Copies    []string     `json:"copies"` // other files that hold one of the values
	Rotate    []string     `json:"rotate"` // resources whose values have been in clear
}

// importedNote begins the note of what an import sealed; the rest says from
// where, and is how repeating finds it again.
const importedNote = "imported: "

// longestNote is how long a note may be, in bytes.
const longestNote = 1024

// noteOf is the note of what comes from source.
func noteOf(source string) string {
	note := importedNote + source
	if len(note) <= longestNote && !strings.ContainsFunc(note, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return note
	}
	sum := sha256.Sum256([]byte(source))
	return importedNote + "sha256:" + hex.EncodeToString(sum[:])
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// longestName is how long a name may be, in bytes.
const longestName = 128

// nameFrom is a name made of what may hold other characters. Where that loses
// anything a hash of the original tells it apart.
func nameFrom(original string) string {
	name := notInNames.ReplaceAllString(original, "-")
	if first := name[:min(1, len(name))]; first == "" || strings.Trim(first, "._-") == "" {
		name = "env." + strings.TrimLeft(name, ".-")
	}
	if strings.HasSuffix(name, original) && len(name) <= longestName {
		return name
	}
	return told(name, original)
}

// told is name with eight letters of a hash of what tells it apart.
func told(name, apart string) string {
	sum := sha256.Sum256([]byte(apart))
	return name[:min(len(name), longestName-9)] + "-" + hex.EncodeToString(sum[:4])
}

// ready asks the daemon whether it can seal now, before anything is judged.
func (a *app) ready(ctx context.Context, doing string) (limit uint64, err error) {
	s, err := a.status(ctx, doing)
	if err != nil {
		return 0, err
	}
	if state := s.GetVaultState(); state == "locked" || state == "waiting" {
		return 0, fail(wire.Deny(wire.VaultLocked), "%s", doing)
	}
	return contentLimit(s), nil
}

// nameItems gives every value that is to be sealed its name, and refuses before
// anything is stored what could not be. A name is, in this order, that which an
// earlier import of the same source made, the plain one if it is free or
// declared without content, or the plain one with a hash of the source.
func (a *app) nameItems(ctx context.Context, doing string, items []importItem) error {
	limit, err := a.ready(ctx, doing)
	if err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.ListResourcesRequest{}, operatorv1.OperatorServiceClient.ListResources)
	if err != nil {
		return err
	}
	taken := map[string]*operatorv1.Resource{}
	made := map[string]string{} // names by note
	for _, r := range got.GetResources() {
		taken[r.GetName()] = r
		if note := r.GetNote(); strings.HasPrefix(note, importedNote) && r.GetKind() == content.Secret && made[note] == "" {
			made[note] = r.GetName()
		}
	}
	given := map[string]bool{}
	for i := range items {
		item := &items[i]
		switch {
		case item.value == nil:
			continue
		case uint64(len(item.value)) > limit:
			return &failure{
				code: wire.ResourceTooLarge, doing: doing, exit: wire.Exit(wire.ResourceTooLarge),
				what: fmt.Sprintf("line %d: the value of %s is larger than %d bytes, the limit of this daemon", item.Line, item.Key, limit),
			}
		case item.same >= 0:
			first := items[item.same]
			item.ResourceID, item.found, item.Result = first.ResourceID, first.found, first.Result
			continue
		}
		if name := made[noteOf(item.source)]; name != "" && !given[name] {
			item.ResourceID, item.found = name, true
		} else {
			for _, name := range []string{item.base, told(item.base, item.source)} {
				r := taken[name]
				if free := r == nil || r.GetKind() == content.Secret && r.GetVersion() == 0; free && !given[name] {
					item.ResourceID = name
					break
				}
			}
		}
		if item.ResourceID == "" {
			return refuse(doing, "line %d: %s: the name %s, and %s too, belong to something else", item.Line, item.Key, item.base, told(item.base, item.source))
		}
		given[item.ResourceID] = true
		item.Result = wouldSeal
		if item.found {
			item.Result = wouldUpdate
		}
	}
	return nil
}

// sealItems seals every value once. What an earlier import sealed, and is the
// same still, is left alone.
func (a *app) sealItems(ctx context.Context, doing string, items []importItem) error {
	for i := range items {
		item := &items[i]
		if item.value == nil {
			continue
		}
		if item.same >= 0 {
			first := items[item.same]
			item.Version, item.Result = first.Version, first.Result
			continue
		}
		put, err := call(ctx, a, doing, &operatorv1.PutSecretRequest{
			Name: item.ResourceID, Content: item.value, Kind: content.Secret, Note: noteOf(item.source),
			IfChanged: true, IfAbsent: !item.found,
		}, operatorv1.OperatorServiceClient.PutSecret)
		if err != nil {
			return err
		}
		item.Version = put.GetResource().GetVersion()
		switch {
		case put.GetUnchanged():
			item.Result = sealedSame
		case item.Version > 1:
			item.Result = sealedAnew
		default:
			item.Result = sealed
		}
	}
	return nil
}

// names are the resources of the items, each once, in order.
func names(items []importItem) []string {
	all := []string{}
	for _, item := range items {
		if item.ResourceID != "" && !slices.Contains(all, item.ResourceID) {
			all = append(all, item.ResourceID)
		}
	}
	return all
}

// grantUse lets a subject use what was sealed where the broker puts it in, and
// read none of it. Grants that are there stay as they are.
func (a *app) grantUse(ctx context.Context, doing, subject string, resources []string) ([]string, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListGrantsRequest{Subject: subject}, operatorv1.OperatorServiceClient.ListGrants)
	if err != nil {
		return nil, err
	}
	missing := []string{}
	for _, name := range resources {
		capability := "use:" + name
		if !slices.ContainsFunc(got.GetGrants(), func(g *operatorv1.Grant) bool {
			return g.GetSubject() == subject && g.GetCapability() == capability && g.GetEffect() == "allow"
		}) {
			missing = append(missing, capability)
		}
	}
	if len(missing) == 0 {
		return missing, nil
	}
	_, err = call(ctx, a, doing, &operatorv1.CreateGrantsRequest{Subject: subject, Capabilities: missing}, operatorv1.OperatorServiceClient.CreateGrants)
	return missing, err
}

// importSubject makes sure that a subject exists before anything is sealed for it.
func (a *app) importSubject(ctx context.Context, doing, subject string) error {
	if subject == "" {
		return nil
	}
	all, err := a.subjects(ctx, doing)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s *operatorv1.Subject) bool { return s.GetName() == subject }) {
		return refuse(doing, "there is no subject %s", subject).withHint("%s", a.paste("subject", "add", subject))
	}
	return nil
}

// sayGrants says who may now do what, and what to grant for more.
func (a *app) sayGrants(subject string, granted, resources []string) {
	if len(resources) == 0 {
		return
	}
	example := a.paste("grant", orWord(subject, "SUBJECT"), resources[0], "--disclose", "--ttl", "1h")
	switch {
	case subject == "":
		a.done("no subject may use or read them yet; to let one read %s for an hour: %s", resources[0], example)
	case len(granted) > 0:
		a.done("%s may now use %s where the broker puts a value in, and can read none; to let it read one for an hour: %s", subject, strings.Join(resources, ", "), example)
	default:
		a.done("%s may use them already, and can read none by this; to let it read one for an hour: %s", subject, example)
	}
}

func orWord(word, otherwise string) string {
	if word == "" {
		return otherwise
	}
	return word
}

// sayCopies ends an import: where what was in clear may still be, and that it
// must be taken for known.
func (a *app) sayCopies(file string, mode uint32, rewritten bool, found copies.Found, rotate []string) {
	a.done("")
	a.done("Copies of these values may remain:")
	if !rewritten {
		a.done("  in %s itself, which is as it was", file)
	}
	for _, other := range found.Files {
		if other != file {
			a.done("  in %s, which holds one of them", other)
		}
	}
	if found.Git != "" {
		a.done("  in the history of the git repository %s: git -C %s log --all -- %s", found.Git, shellQuote(found.Git), shellQuote(file))
	}
	if mode&0o044 != 0 {
		a.done("  wherever those read it to who may: %s has mode %04o", file, mode)
	}
	a.done("  in backups and undo files of editors, the history of your shell, transcripts of agents,")
	a.done("  snapshots and backups of the disk, and in blocks that the file system has freed")
	if found.Partial {
		a.done("  (not every known place was searched, or a value was too short to search for)")
	}
	a.done("So rotate these at their source, then seal the new value: %s", strings.Join(rotate, ", "))
}
