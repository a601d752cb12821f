// Package copies looks for values that were just sealed in the places where
// copies of them use to remain: backups of editors, histories of shells, other
// configurations. It tells the operator where to look; it opens files only to
// read them, changes none, and never tells what stands in them.
//
// It finds a value only as it is written, in files that it knows to look at. It
// cannot see git's history, snapshots, backups and free blocks of the disk.
package copies

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"subjectbroker/cmd/sbctl/internal/content"
)

// Shortest is the length in bytes from which a value is looked for; a shorter
// one would be found by chance.
const Shortest = 8

// Limits of one search.
const (
	largestFile = 32 << 20  // bytes read of one file
	mostBytes   = 256 << 20 // bytes read of all
	mostFiles   = 2000
)

// Config says where to look.
type Config struct {
	File     string   // where the values came from, absolute, links followed; required
	UserHome string   // absolute; required
	Files    []string // more files to look at, absolute; they need not exist
	Avoid    string   // a directory that is not looked into, absolute; "": none
}

// Found is what a search came to.
type Found struct {
	Files   []string // that hold one of the values, sorted; File itself only if it does still
	Partial bool     // a limit was reached, or a value was too short to be looked for
	Git     string   // top of the git working tree in which File lies; "": none
}

// Find looks for values.
func Find(ctx context.Context, values []content.Bytes, cfg Config) Found {
	s := &search{avoid: cfg.Avoid, left: mostBytes, seen: map[string]bool{}}
	for _, value := range values {
		s.want(value)
	}
	defer s.wipe()
	s.found.Git = workTree(filepath.Dir(cfg.File))
	if len(s.values) > 0 {
		s.file(ctx, cfg.File)
		s.beside(ctx, cfg.File)
		for _, file := range cfg.Files {
			s.file(ctx, file)
			s.beside(ctx, file)
		}
		for _, pattern := range homePlaces {
			s.glob(ctx, filepath.Join(escape(cfg.UserHome), pattern))
		}
		slices.Sort(s.found.Files)
	}
	return s.found
}

// homePlaces are patterns below the operator's home.
var homePlaces = []string{
	// histories
	".bash_history", ".zsh_history", ".zhistory", ".sh_history", ".ash_history", ".history", ".local/share/fish/fish_history",
	".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".rediscli_history", ".lesshst", ".viminfo",
	".local/state/nvim/shada/*.shada", ".local/share/nvim/shada/*.shada",
	// what shells read at start
	".profile", ".bash_profile", ".bashrc", ".bash_aliases", ".zshrc", ".zshenv", ".zprofile", ".config/fish/config.fish", ".config/environment.d/*.conf",
	".env", ".envrc",
	// credentials of other programs
	".netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".git-credentials", ".gitconfig", ".config/git/config", ".config/gh/hosts.yml", ".config/hub",
	".docker/config.json", ".aws/credentials", ".aws/config", ".config/rclone/rclone.conf", ".cargo/credentials.toml", ".huggingface/token",
	".cache/huggingface/token", ".kube/config",
	// what editors keep
	".vim/swap/*", ".vim/backup/*", ".vim/undo/*", ".local/state/nvim/swap/*", ".local/state/nvim/backup/*", ".local/state/nvim/undo/*",
	".local/state/vim/*", ".emacs.d/auto-save-list/*", ".emacs.d/backups/*", ".config/emacs/backups/*", ".local/share/nano/*",
	".config/Code/User/History/*/*", ".config/Cursor/User/History/*/*", ".local/share/Trash/files/*",
	// what agents keep
	".claude/backups/*", ".claude/history.jsonl", ".claude/projects/*/*.jsonl", ".claude/shell-snapshots/*", ".claude/paste-cache/*",
	".codex/history.jsonl", ".codex/sessions/*/*/*/*.jsonl", ".gemini/tmp/*/logs.json", ".gemini/tmp/*/chats/*.json",
	".local/share/opencode/storage/part/*/*",
}

// escape keeps a path's own characters from being a pattern.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

type search struct {
	values []content.Bytes
	avoid  string
	left   int
	files  int
	seen   map[string]bool
	found  Found
}

// want adds a value, as it is and as JSON writes it.
func (s *search) want(value content.Bytes) {
	if len(value) < Shortest {
		s.found.Partial = s.found.Partial || len(value) > 0
		return
	}
	s.values = append(s.values, bytes.Clone(value))
	if quoted, err := json.Marshal(string(value)); err == nil {
		if inner := quoted[1 : len(quoted)-1]; !bytes.Equal(inner, value) {
			s.values = append(s.values, inner)
		}
	}
}

func (s *search) wipe() {
	for _, value := range s.values {
		value.Wipe()
	}
}

// beside looks at files in the same directory whose name has this one's in it:
// what editors and careful people leave.
func (s *search) beside(ctx context.Context, path string) {
	dir, name := filepath.Split(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if strings.Contains(entry.Name(), name) {
			s.file(ctx, filepath.Join(dir, entry.Name()))
		}
	}
}

func (s *search) glob(ctx context.Context, pattern string) {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	for _, match := range matches {
		s.file(ctx, match)
	}
}

// file looks at one file. What cannot be read is not looked at.
func (s *search) file(ctx context.Context, path string) {
	if ctx.Err() != nil {
		s.found.Partial = true
		return
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil || s.seen[real] || s.avoid != "" && within(real, s.avoid) {
		return
	}
	s.seen[real] = true
	// Without blocking: it may be a pipe.
	handle, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if info.Size() > largestFile || info.Size() > int64(s.left) || s.files >= mostFiles {
		s.found.Partial = true
		return
	}
	text := make(content.Bytes, info.Size())
	n, err := io.ReadFull(handle, text)
	defer text.Wipe()
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return
	}
	s.files++
	s.left -= n
	for _, value := range s.values {
		if ctx.Err() != nil { // many values in a large file take a while
			s.found.Partial = true
			return
		}
		if bytes.Contains(text[:n], value) {
			s.found.Files = append(s.found.Files, real)
			return
		}
	}
}

func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// workTree is the nearest directory from dir up that git keeps a history of.
func workTree(dir string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		} else if !errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}
