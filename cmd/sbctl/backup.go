package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type backupCmd struct {
	Make   backupMakeCmd   `cmd:"" default:"withargs" help:"Write one sealed file that holds everything"`
	Verify backupVerifyCmd `cmd:"" help:"Read a backup and open everything in it"`
	List   backupListCmd   `cmd:"" help:"List the backups that were made"`
}

// Help is the manual of backup.
func (backupCmd) Help() string {
	return `A backup is one file: the vault, without what was deleted, and the audit log. It
is sealed, and opens with the passphrase or the recovery code of its time, on any
machine; no key that the daemon uses by itself is in it.

"sbctl backup FILE" makes one, also while the daemon serves. "sbd restore FILE
--home DIR" puts one back, with the daemon stopped.`
}

type backupMakeCmd struct {
	File    string `arg:"" help:"The file to write."`
	NoAudit bool   `help:"Leave the audit log out."`
	Force   bool   `help:"Take the place of a file that is there."`
}

// Help is the manual of backup make.
func (backupMakeCmd) Help() string {
	return `The file appears under its name when it is complete and on the disk, with mode
0600; a file of that name is not replaced without --force. Keep it elsewhere than
this machine, and the printed entry (seq:head) with it: a log that is later found
without that entry was put back or cut off.

A backup needs a recovery code or a passphrase slot, or nobody could open it.

Examples:
  sbctl backup /mnt/usb/broker-2026-01-31.sbb
  sbctl backup verify /mnt/usb/broker-2026-01-31.sbb`
}

type backupView struct {
	ID         string   `json:"id"`
	Name       string   `json:"name,omitempty"`
	Created    string   `json:"created"`
	Vault      string   `json:"vault,omitempty"`
	Generation uint64   `json:"generation,omitempty"`
	Rows       uint64   `json:"rows,omitempty"`
	Seq        uint64   `json:"seq"`
	Hash       string   `json:"hash,omitempty"`
	Genesis    string   `json:"genesis,omitempty"`
	Audit      bool     `json:"audit"`
	Slots      []string `json:"slots"` // kinds that open it; empty when only its maker knows
	Bytes      uint64   `json:"bytes,omitempty"`
}

func viewBackup(b *operatorv1.BackupInfo) backupView {
	return backupView{
		ID: b.GetId(), Name: b.GetName(), Created: ui.Stamp(b.GetCreated()), Vault: b.GetVaultId(), Generation: b.GetGeneration(),
		Rows: b.GetRows(), Seq: b.GetSeq(), Hash: b.GetHead(), Genesis: b.GetGenesis(), Audit: b.GetAudit(),
		Slots: append([]string{}, b.GetSlots()...), Bytes: b.GetSize(),
	}
}

func viewBackups(backups []*operatorv1.BackupInfo) []backupView {
	views := make([]backupView, 0, len(backups))
	for _, b := range backups {
		views = append(views, viewBackup(b))
	}
	return views
}

var backupHead = []string{"BACKUP", "MADE", "ENTRY", "SIZE", "OPENED BY", "NAME"}

func (a *app) backupRows(backups []*operatorv1.BackupInfo) [][]string {
	var rows [][]string
	for _, b := range backups {
		seq := ""
		if b.GetSeq() > 0 { // a backup that was not handed out whole has none
			seq = fmt.Sprint(b.GetSeq())
		}
		rows = append(rows, []string{
			b.GetId(), a.out.When(b.GetCreated()), seq, backupSize(b), strings.Join(b.GetSlots(), ", "), b.GetName(),
		})
	}
	return rows
}

func backupSize(b *operatorv1.BackupInfo) string {
	if b.GetSize() == 0 {
		return ""
	}
	return ui.Size(b.GetSize())
}

func (a *app) backupFields(b *operatorv1.BackupInfo) []ui.Field {
	log := "in it"
	if !b.GetAudit() {
		log = "left out"
	}
	return []ui.Field{
		{Name: "backup", Value: b.GetId()},
		{Name: "made", Value: a.out.When(b.GetCreated())},
		{Name: "vault", Value: fmt.Sprintf("%s, generation %d, %s", b.GetVaultId(), b.GetGeneration(), count(b.GetRows(), "row"))},
		{Name: "head", Value: fmt.Sprintf("%d:%s", b.GetSeq(), b.GetHead())},
		{Name: "genesis", Value: b.GetGenesis()},
		{Name: "log", Value: log},
		{Name: "opened by", Value: strings.Join(b.GetSlots(), ", ")},
		{Name: "size", Value: backupSize(b)},
	}
}

type backupMadeView struct {
	backupView
	Path string `json:"path"`
}

// Run makes a backup.
func (c backupMakeCmd) Run(ctx context.Context, a *app) error {
	if c.File == "-" {
		return refuse(makingBackup, "a backup goes into a file, not to standard output")
	}
	path, err := filepath.Abs(c.File)
	if err != nil {
		return fail(err, makingBackup)
	}
	made, err := a.makeBackup(ctx, path, &c)
	if err != nil {
		return err
	}
	a.done("keep it away from this machine, and its head with it; it opens with your %s", strings.Join(made.GetSlots(), " or "))
	a.done("prove that it is whole: %s", a.paste("backup", "verify", path))
	return a.out.Object(ui.Object{
		ID: made.GetId(), Value: backupMadeView{viewBackup(made), path},
		Fields: append([]ui.Field{{Name: "file", Value: path}}, a.backupFields(made)...),
	})
}

const makingBackup = "making a backup"

// makeBackup writes a backup to path.
func (a *app) makeBackup(ctx context.Context, path string, c *backupMakeCmd) (made *operatorv1.BackupInfo, err error) {
	if err := refuseFile(makingBackup, path, c.Force); err != nil {
		return nil, err
	}
	if _, err := a.unlockedStatus(ctx, makingBackup); err != nil {
		return nil, err
	}
	request := &operatorv1.BackupRequest{NoAudit: c.NoAudit, Name: backupName(path)}
	err = replaceFile(makingBackup, path, c.Force, func(file *os.File) error {
		made, err = a.receiveBackup(ctx, makingBackup, request, file)
		return err
	})
	return made, err
}

// maxBackupName is the longest name of a backup, in bytes.
const maxBackupName = 1024

// backupName is what the daemon remembers of path: the end of it, which tells
// more than its beginning.
func backupName(path string) string {
	for len(path) > maxBackupName {
		_, size := utf8.DecodeRuneInString(path)
		path = path[size:]
	}
	return strings.ToValidUTF8(path, "?")
}

// receiveBackup writes what the daemon streams to file.
func (a *app) receiveBackup(ctx context.Context, doing string, request *operatorv1.BackupRequest, file io.Writer) (*operatorv1.BackupInfo, error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := operator.Backup(ctx, request)
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	progress := ui.NewProgress(a.stderr, "writing the backup")
	defer progress.Done()
	var info *operatorv1.BackupInfo
	var written, total int64
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fail(err, "%s", doing)
		}
		if _, err := file.Write(piece.GetChunk()); err != nil {
			return nil, fail(err, "%s", doing)
		}
		written += int64(len(piece.GetChunk()))
		total = max(total, int64(piece.GetTotal()))
		progress.Show(min(written, total), total)
		if piece.GetInfo() != nil {
			info = piece.GetInfo()
		}
	}
	if info == nil || written == 0 {
		return nil, fail(errors.New("the daemon ended the backup before it was whole"), "%s", doing)
	}
	info.Size = uint64(written)
	return info, nil
}

type backupVerifyCmd struct {
	File string `arg:"" help:"The backup."`
}

// Help is the manual of backup verify.
func (backupVerifyCmd) Help() string {
	return `The daemon opens every row and every content in it and verifies the log in it,
and leaves nothing of it behind. A backup of another vault is verified where that
vault is, or with "sbd restore FILE --dry-run". The exit code is 5 when anything
in it is damaged.

Examples:
  sbctl backup verify /mnt/usb/broker-2026-01-31.sbb`
}

type backupVerifiedView struct {
	backupView
	Contents uint64 `json:"contents"`
	Entries  uint64 `json:"entries"`
}

// chunk is how much of a file crosses the socket in one message, in bytes.
const chunk = 256 << 10

// Run verifies a backup.
func (c backupVerifyCmd) Run(ctx context.Context, a *app) error {
	doing := "verifying " + c.File
	file, err := os.Open(c.File)
	if err != nil {
		return fail(err, "%s", doing)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fail(err, "%s", doing)
	}
	if !info.Mode().IsRegular() {
		return refuse(doing, "it is no regular file")
	}
	got, err := a.sendBackup(ctx, doing, file, info.Size())
	if failed, ok := errors.AsType[*failure](err); ok && failed.code == wire.IntegrityFailed {
		failed.hint = "" // it is the file that is damaged, not the broker
	}
	if err != nil {
		return err
	}
	fields := append([]ui.Field{{Name: "result", Value: "whole"}}, a.backupFields(got.GetInfo())...)
	fields = append(fields,
		ui.Field{Name: "contents", Value: fmt.Sprintf("%d opened", got.GetContents())},
		ui.Field{Name: "entries", Value: fmt.Sprintf("%d verified", got.GetEntries())})
	return a.out.Object(ui.Object{
		ID: got.GetInfo().GetId(), Fields: fields, Value: backupVerifiedView{viewBackup(got.GetInfo()), got.GetContents(), got.GetEntries()},
	})
}

// sendBackup streams a file to the daemon and returns its judgement.
func (a *app) sendBackup(ctx context.Context, doing string, file io.Reader, size int64) (*operatorv1.VerifyBackupResponse, error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := operator.VerifyBackup(ctx)
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	progress := ui.NewProgress(a.stderr, "verifying")
	defer progress.Done()
	var sent int64
	for {
		piece := make([]byte, chunk) // grpc may still hold the one before
		n, err := io.ReadFull(file, piece)
		if n > 0 {
			// A refusal ends the stream early, and CloseAndRecv says why.
			if err := stream.Send(&operatorv1.VerifyBackupRequest{Chunk: piece[:n]}); err != nil {
				break
			}
			sent += int64(n)
			progress.Show(sent, size)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fail(err, "%s", doing)
		}
	}
	got, err := stream.CloseAndRecv()
	return got, fail(err, "%s", doing)
}

type backupListCmd struct{}

// Help is the manual of backup list.
func (backupListCmd) Help() string {
	return `What the daemon remembers of them, newest first. Where the files are now, and
whether they are still there, it does not know.

Examples:
  sbctl backup list`
}

// Run lists backups.
func (backupListCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "listing backups", &operatorv1.ListBackupsRequest{}, operatorv1.OperatorServiceClient.ListBackups)
	if err != nil {
		return err
	}
	list := ui.List{Head: backupHead, Rows: a.backupRows(got.GetBackups()), Items: viewBackups(got.GetBackups())}
	for _, b := range got.GetBackups() {
		list.IDs = append(list.IDs, b.GetId())
	}
	return a.list(list, "no backup was made")
}

// refuseFile refuses to write to path when something is there that must not be
// replaced.
func refuseFile(doing, path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fail(err, "%s", doing)
	case !info.Mode().IsRegular():
		return refuse(doing, "%s is no regular file", path)
	case !force:
		return refuse(doing, "%s exists already: choose another name, or add --force", path)
	}
	return nil
}

// replaceFile writes a file of mode 0600 that has its name only when it is
// complete and durable: temporary file beside it, fsync, rename, fsync of the
// directory. On any error nothing of it is left.
func replaceFile(doing, path string, force bool, write func(*os.File) error) (err error) {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // mode 0600
	if errors.Is(err, fs.ErrNotExist) {
		return refuse(doing, "%s does not exist", dir)
	}
	if err != nil {
		return fail(err, "%s", doing)
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return fail(err, "%s", doing)
	}
	if err := refuseFile(doing, path, force); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fail(err, "%s", doing)
	}
	return fail(syncDir(dir), "%s", doing)
}

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.Sync()
}
