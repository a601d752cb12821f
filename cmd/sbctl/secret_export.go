package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type secretExportCmd struct {
	To     string `required:"" placeholder:"DIR" help:"Directory to write into; made when it does not exist, else it must be empty."`
	Reveal bool   `required:"" help:"Say that all content will lie there in clear."`
}

// Help is the manual of secret export.
func (secretExportCmd) Help() string {
	return `Writes the newest version of everything sealed, in clear, one file a name, mode
0600, into a new directory of mode 0700. _manifest.json in it says what is what:
kind, version, size, SHA-256 and note of each, and where the registered files
lie, which are not copied. Every disclosure is recorded in the audit log. What
cannot be opened is named, and does not keep the rest back.

Examples:
  sbctl secret export --to ~/exported --reveal`
}

type exportedView struct {
	ResourceID string `json:"resourceId"`
	Path       string `json:"path"`
	Version    uint32 `json:"version"`
	Bytes      int    `json:"bytes"`
}

// manifestName is no name that a resource can have.
const manifestName = "_manifest.json"

// manifest is what an export says about itself.
type manifest struct {
	Schema  int              `json:"schema"`
	Created string           `json:"created"`
	Vault   string           `json:"vault"`
	Secrets []manifestSecret `json:"secrets"`
	Files   []manifestFile   `json:"files"`  // registered, not copied
	Empty   []string         `json:"empty"`  // declared, without content
	Failed  []string         `json:"failed"` // that could not be opened
}

type manifestSecret struct {
	ResourceID string `json:"resourceId"`
	File       string `json:"file"`
	Kind       string `json:"kind"`
	Version    uint32 `json:"version"`
	Bytes      int    `json:"bytes"`
	SHA256     string `json:"sha256"`
	Note       string `json:"note,omitempty"`
}

type manifestFile struct {
	ResourceID string `json:"resourceId"`
	Path       string `json:"path"`
	Pin        string `json:"pin"`
	SHA256     string `json:"contentSha256"`
	Note       string `json:"note,omitempty"`
}

// Run writes the files.
func (c secretExportCmd) Run(ctx context.Context, a *app) error {
	const doing = "exporting secrets"
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	resources, err := a.resources(ctx, doing)
	if err != nil {
		return err
	}
	root, err := exportDir(doing, c.To)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	e := export{
		app: a, root: root,
		manifest: manifest{
			Schema: 1, Created: ui.Stamp(a.now().UnixMilli()), Vault: s.GetVaultId(),
			Secrets: []manifestSecret{}, Files: []manifestFile{}, Empty: []string{}, Failed: []string{},
		},
	}
	failed := e.all(ctx, resources)
	if err := e.finish(doing); err != nil {
		return errors.Join(failed, err)
	}
	if err := a.out.List(e.list()); err != nil {
		return err
	}
	a.done("all of it lies there in clear: move it where it is safe, and remove it here")
	return failed
}

// exportDir opens an empty directory of our own, after making it if need be.
func exportDir(doing, dir string) (*os.Root, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fail(err, "%s", doing)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	refused := refuseDir(doing, dir, root)
	if refused != nil {
		_ = root.Close()
		return nil, refused
	}
	return root, nil
}

func refuseDir(doing, dir string, root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return fail(err, "%s", doing)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return refuse(doing, "%s belongs to uid %d: choose one that does not exist", dir, stat.Uid)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return refuse(doing, "others can look into %s, mode %04o: choose one that does not exist", dir, info.Mode().Perm())
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fail(err, "%s", doing)
	}
	if len(entries) > 0 {
		return refuse(doing, "%s exists already and is not empty", dir)
	}
	return nil
}

// export is an export that is being written.
type export struct {
	app      *app
	root     *os.Root
	manifest manifest
}

// all writes what can be opened. The first failure is returned; one that is
// about a single resource does not keep the rest back.
func (e *export) all(ctx context.Context, resources []*operatorv1.Resource) error {
	progress := ui.NewProgress(e.app.stderr, "exporting")
	defer progress.Done()
	var first error
	for i, r := range resources {
		progress.Show(int64(i), int64(len(resources)))
		switch {
		case r.GetType() != typeSealed:
			e.manifest.Files = append(e.manifest.Files, manifestFile{r.GetName(), r.GetPath(), r.GetPin(), r.GetSha256(), r.GetNote()})
			continue
		case r.GetVersion() == 0:
			e.manifest.Empty = append(e.manifest.Empty, r.GetName())
			continue
		}
		err := e.one(ctx, r)
		if failed, ok := errors.AsType[*failure](err); ok && failed.code == wire.IntegrityFailed {
			e.manifest.Failed = append(e.manifest.Failed, r.GetName())
			if first == nil {
				first = err
			} else {
				e.app.say("%v", err)
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	return first
}

func (e *export) one(ctx context.Context, r *operatorv1.Resource) error {
	doing := "exporting " + r.GetName()
	got, err := call(ctx, e.app, doing, &operatorv1.GetSecretRequest{Name: r.GetName()}, operatorv1.OperatorServiceClient.GetSecret)
	if err != nil {
		return err
	}
	b := content.Bytes(got.GetContent())
	defer b.Wipe()
	// Where A and a are one file, the second gets a name that no resource has.
	name := r.GetName()
	err = writeNew(e.root, name, b)
	for n := 2; errors.Is(err, fs.ErrExist); n++ {
		name = r.GetName() + "~" + strconv.Itoa(n)
		err = writeNew(e.root, name, b)
	}
	if err != nil {
		return fail(err, "%s", doing)
	}
	sum := sha256.Sum256(b)
	e.manifest.Secrets = append(e.manifest.Secrets, manifestSecret{
		ResourceID: r.GetName(), File: name, Kind: got.GetKind(), Version: got.GetVersion(), Bytes: len(b),
		SHA256: hex.EncodeToString(sum[:]), Note: r.GetNote(),
	})
	return nil
}

// finish writes the manifest and makes the directory durable.
func (e *export) finish(doing string) error {
	text, err := ui.Encode(e.manifest)
	if err != nil {
		return err
	}
	if err := writeNew(e.root, manifestName, text); err != nil {
		return fail(err, "%s", doing)
	}
	return fail(syncDir(e.root.Name()), "%s", doing)
}

func (e *export) list() ui.List {
	list := ui.List{Head: []string{"NAME", "VERSION", "SIZE", "FILE"}}
	views := []exportedView{}
	for _, s := range e.manifest.Secrets {
		view := exportedView{ResourceID: s.ResourceID, Path: filepath.Join(e.root.Name(), s.File), Version: s.Version, Bytes: s.Bytes}
		views = append(views, view)
		list.IDs = append(list.IDs, view.ResourceID)
		list.Rows = append(list.Rows, []string{view.ResourceID, fmt.Sprint(view.Version), ui.Size(uint64(view.Bytes)), view.Path})
	}
	list.Items = views
	return list
}

// writeNew writes a durable file that must not exist yet; half a file is removed.
func writeNew(root *os.Root, name string, b content.Bytes) (err error) {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = root.Remove(name)
		}
	}()
	if _, err := file.Write(b); err != nil {
		return err
	}
	return file.Sync()
}
