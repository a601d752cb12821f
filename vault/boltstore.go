package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	// lockWait bounds the wait for another process to let go of the file, for one that is just ending.
	lockWait  = 500 * time.Millisecond
	lockRetry = 25 * time.Millisecond
	// minMapping is address space, not memory. bbolt must stop all readers whenever the file outgrows its mapping.
	minMapping = 64 << 20
	// growStep is how much more than needed the file grows. bbolt's own step of 16 MiB would make every vault look that big.
	growStep = 64 << 10
	// readWait bounds how long a reader waits for a commit that the disk does not let through, and maxWaiting how many do.
	readWait   = time.Second
	maxWaiting = 64
)

// boltStore is a rowStore in one bbolt file.
//
// bbolt panics on files it does not expect, follows any page number it reads, and makes a new database out of an empty
// file. So the file is opened, locked and checked here (pages.go) before bbolt sees it, and every call into bbolt is
// guarded against what changes afterwards.
type boltStore struct {
	path   string
	db     *bolt.DB
	file   *os.File    // owned by db
	opened os.FileInfo // identity of file
	broken atomic.Bool // a call panicked: bbolt's locks may be held for ever
	// committing is set while bbolt may hold a lock that readers need while it writes: on a disk that stands still, for long.
	committing atomic.Bool
	waiting    atomic.Int32 // readers that wait for that lock
	// fill is how full pages are made that rows are added to in order; 0 is bbolt's own measure for a file that goes on growing.
	fill float64
}

// openBolt opens an existing file. It creates nothing and, read-only, changes nothing.
func openBolt(path string, readOnly bool) (*boltStore, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	// O_NONBLOCK: a pipe in the file's place must not hang us. It means nothing for a regular file.
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: no file %s", ErrMissing, path)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrDamaged, path)
	case err != nil:
		return nil, err
	}
	s, err := startBolt(f, path, readOnly)
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func startBolt(f *os.File, path string, readOnly bool) (*boltStore, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := singleRegular(info); err != nil {
		return nil, fmt.Errorf("%w: %s %w", ErrDamaged, path, err)
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%w: %s is empty", ErrMissing, path)
	}
	if err := lockFile(f, readOnly); err != nil {
		return nil, err
	}
	// The size counts only now that nobody else writes.
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	mapping, err := checkPages(f, info.Size())
	if err != nil {
		return nil, err
	}
	return attachBolt(f, info, path, readOnly, mapping)
}

// createBolt makes a new file of mode 0600 that must not exist yet, and does not after an error.
func createBolt(path string) (*boltStore, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	s, err := func() (*boltStore, error) {
		// The umask may have taken bits of our own.
		if err := f.Chmod(0o600); err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if err := lockFile(f, false); err != nil {
			return nil, err
		}
		return attachBolt(f, info, path, false, 0)
	}()
	if err != nil {
		f.Close()
		return nil, and(err, removeIfThere(path))
	}
	return s, nil
}

// attachBolt hands an opened, locked and checked file to bbolt.
func attachBolt(f *os.File, info os.FileInfo, path string, readOnly bool, mapping int64) (*boltStore, error) {
	s := &boltStore{path: path, file: f, opened: info}
	err := s.guard(func() (err error) {
		s.db, err = bolt.Open(path, 0o600, &bolt.Options{
			OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f, nil },
			// The lock is held already; with 0 bbolt would wait for ever if it were not.
			Timeout:         lockWait,
			ReadOnly:        readOnly,
			FreelistType:    bolt.FreelistMapType,
			InitialMmapSize: int(max(mapping, minMapping)),
			NoStatistics:    true,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.db.AllocSize = growStep
	return s, nil
}

// singleRegular refuses whatever could be changed under another name, or is no file.
func singleRegular(info os.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case !ok || st.Nlink != 1:
		return errors.New("has more than one link")
	}
	return nil
}

// lockFile takes the lock bbolt takes: two processes that both write destroy the file.
func lockFile(f *os.File, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("locking: %w", err)
		case time.Now().After(deadline):
			return ErrInUse
		default:
			time.Sleep(lockRetry)
		}
	}
}

// guard runs a call into bbolt. A panic there, or a fault on the mapping of a file that was cut under us, is damage.
func (s *boltStore) guard(call func() error) (err error) {
	if s.broken.Load() {
		return fmt.Errorf("%w: an earlier read failed", ErrDamaged)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s.broken.Store(true)
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return call()
}

func (s *boltStore) unchanged() error {
	now, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: it is gone", ErrReplaced)
	case err != nil:
		return err
	case !os.SameFile(now, s.opened):
		return fmt.Errorf("%w: another file is in its place", ErrReplaced)
	}
	if err := singleRegular(now); err != nil {
		return fmt.Errorf("%w: it %w", ErrReplaced, err)
	}
	return nil
}

// dup opens the file once more, for after close.
func (s *boltStore) dup() (*os.File, error) {
	fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", s.path, err)
	}
	return os.NewFile(uintptr(fd), s.path), nil
}

func (s *boltStore) close() error {
	if s.broken.Load() {
		// bbolt's own Close could wait for a lock that a panic left behind. The mapping is lost until the process ends, and
		// it would keep the file locked.
		return and(unix.Flock(int(s.file.Fd()), unix.LOCK_UN), s.file.Close())
	}
	return s.guard(s.db.Close)
}

func (s *boltStore) begin(write bool) (rowTx, error) {
	if !write && s.committing.Load() {
		return s.beginBeside()
	}
	return s.beginNow(write)
}

func (s *boltStore) beginNow(write bool) (rowTx, error) {
	t := &boltTx{store: s, reads: !write}
	err := s.guard(func() (err error) {
		t.tx, err = s.db.Begin(write)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// beginBeside starts a reading transaction beside a commit: ErrStalled when that is not possible within readWait.
func (s *boltStore) beginBeside() (rowTx, error) {
	if s.waiting.Add(1) > maxWaiting {
		s.waiting.Add(-1)
		return nil, ErrStalled
	}
	type begun struct {
		tx  rowTx
		err error
	}
	done := make(chan begun, 1)
	go func() {
		defer s.waiting.Add(-1)
		tx, err := s.beginNow(false)
		done <- begun{tx, err}
	}()
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case b := <-done:
		return b.tx, b.err
	case <-timer.C:
	}
	go func() {
		if b := <-done; b.err == nil {
			b.tx.rollback()
		}
	}()
	return nil, ErrStalled
}

type boltTx struct {
	store *boltStore
	tx    *bolt.Tx // nil once over
	reads bool     // and writes nothing
}

func (t *boltTx) get(bucket, name string) (value []byte, err error) {
	err = t.store.guard(func() error {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			if stored := b.Get([]byte(name)); stored != nil {
				value = append(make([]byte, 0, len(stored)), stored...)
			}
		}
		return nil
	})
	return value, err
}

func (t *boltTx) put(bucket, name string, value []byte) error {
	return t.store.guard(func() error {
		b, err := t.tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		if t.store.fill != 0 {
			b.FillPercent = t.store.fill
		}
		return b.Put([]byte(name), value)
	})
}

func (t *boltTx) del(bucket, name string) error {
	return t.store.guard(func() error {
		b := t.tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		return b.Delete([]byte(name))
	})
}

func (t *boltTx) buckets() (names []string, err error) {
	err = t.store.guard(func() error {
		return t.tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			names = append(names, string(name))
			return nil
		})
	})
	return names, err
}

func (t *boltTx) scan(bucket, after string, b *batch) error {
	b.reset(bucket)
	return t.store.guard(func() error {
		bk := t.tx.Bucket([]byte(bucket))
		if bk == nil {
			return nil
		}
		c := bk.Cursor()
		k, v := c.Seek([]byte(after))
		if string(k) == after && k != nil {
			k, v = c.Next()
		}
		for ; k != nil && !b.full(); k, v = c.Next() {
			if v == nil {
				return fmt.Errorf("%w: a bucket inside bucket %s", ErrDamaged, bucket)
			}
			b.add(k, v)
		}
		return nil
	})
}

func (t *boltTx) commit() error {
	t.store.committing.Store(true)
	defer t.store.committing.Store(false)
	err := t.store.guard(t.tx.Commit)
	t.tx = nil
	return err
}

func (t *boltTx) rollback() {
	if t.tx == nil {
		return
	}
	rollback := t.tx.Rollback
	t.tx = nil
	// Nothing was written, so an error has nothing to say.
	if t.reads && t.store.committing.Load() {
		go func() { _ = t.store.guard(rollback) }() // it needs the same lock
		return
	}
	_ = t.store.guard(rollback)
}
