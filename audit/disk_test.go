package audit

import (
	"sync"
)

// disk is a real folder whose operations can be made to fail.
type disk struct {
	osFolder

	mu    sync.Mutex
	fault func(op string) error
	short int // WriteAt writes only that many bytes when it fails
}

// fail installs what each operation is asked before it is done: create, open,
// view, publish, remove, write, truncate, sync, reserve, probe. nil heals the disk.
func (d *disk) fail(fault func(op string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

func (d *disk) ask(op string) error {
	d.mu.Lock()
	fault := d.fault
	d.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(op)
}

// on fails the named operations with err.
func on(err error, ops ...string) func(op string) error {
	return func(op string) error {
		for _, o := range ops {
			if o == op {
				return err
			}
		}
		return nil
	}
}

// once fails the named operation with err the first time.
func once(err error, op string) func(op string) error {
	var only sync.Once
	return func(asked string) (failed error) {
		if asked == op {
			only.Do(func() { failed = err })
		}
		return failed
	}
}

func (d *disk) Create(name string) (file, error) {
	if err := d.ask("create"); err != nil {
		return nil, err
	}
	f, err := d.osFolder.Create(name)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d}, nil
}

func (d *disk) Open(name string) (file, error) {
	if err := d.ask("open"); err != nil {
		return nil, err
	}
	f, err := d.osFolder.Open(name)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d}, nil
}

func (d *disk) View(name string) (file, error) {
	if err := d.ask("view"); err != nil {
		return nil, err
	}
	return d.osFolder.View(name)
}

func (d *disk) Publish(f file, name string) error {
	if err := d.ask("publish"); err != nil {
		return err
	}
	return d.osFolder.Publish(f.(*diskFile).file, name)
}

func (d *disk) Remove(name string) error {
	if err := d.ask("remove"); err != nil {
		return err
	}
	return d.osFolder.Remove(name)
}

func (d *disk) Probe() error {
	if err := d.ask("probe"); err != nil {
		return err
	}
	return d.osFolder.Probe()
}

type diskFile struct {
	file
	disk *disk
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.disk.ask("write"); err != nil {
		n, _ := f.file.WriteAt(p[:min(len(p), f.disk.short)], off)
		return n, err
	}
	return f.file.WriteAt(p, off)
}

func (f *diskFile) Sync() error {
	if err := f.disk.ask("sync"); err != nil {
		return err
	}
	return f.file.Sync()
}

func (f *diskFile) Truncate(size int64) error {
	if err := f.disk.ask("truncate"); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

func (f *diskFile) Reserve(offset, length int64) error {
	if err := f.disk.ask("reserve"); err != nil {
		return err
	}
	return f.file.Reserve(offset, length)
}
