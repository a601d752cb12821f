package vault

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// The layout of a bbolt file, as far as it must be right for bbolt not to panic, loop or read beyond it. Numbers are in
// the machine's own byte order.
//
//	page     id:u64 flags:u16 count:u16 overflow:u32, then elements; overflow pages follow and belong to it
//	meta     at page 0 and 1, behind the header: magic:u32 version:u32 pageSize:u32 flags:u32 root:u64 sequence:u64
//	         freelist:u64 highWater:u64 txid:u64 checksum:u64 (FNV-64a of what is before it); the newer valid one counts
//	branch   pos:u32 ksize:u32 child:u64
//	leaf     flags:u32 pos:u32 ksize:u32 vsize:u32      pos is relative to the element
//	bucket   a leaf's value with flags 1: root:u64 sequence:u64; root 0 means that a leaf page follows inside the value
//	freelist ids:u64 …, their number in count, or in the first of them when count is 0xFFFF
const (
	pageHeader  = 16
	elementSize = 16
	metaSize    = 64

	metaMagic   = 0xED0CDAED
	metaVersion = 2

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01

	maxKeySize  = 32768
	maxDepth    = 64
	maxFileSize = 1 << 40
)

// checkPages walks every page that can be reached from the newest valid meta page and refuses a file that bbolt could
// not walk: pages out of range, used twice or of the wrong kind, elements outside their page, keys out of order, a free
// list that names pages in use. What cannot be reached is not looked at, and contents are not read. It returns the
// size the file's mapping needs.
func checkPages(f *os.File, size int64) (mapping int64, err error) {
	if size < 4*1024 || size > maxFileSize {
		return 0, fmt.Errorf("%w: a file of %d bytes", ErrDamaged, size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("mapping: %w", err)
	}
	defer unix.Munmap(data) //nolint:errcheck // nothing depends on it
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		// The one panic that can come is a fault: the disk could not deliver a page, or the file was cut just now.
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return checkImage(data)
}

// checkImage is checkPages for a file in memory.
func checkImage(data []byte) (int64, error) {
	m, pageSize, ok := newestMeta(data)
	if !ok {
		return 0, fmt.Errorf("%w: no valid meta page", ErrDamaged)
	}
	if m.highWater > maxFileSize/uint64(pageSize) {
		return 0, fmt.Errorf("%w: %d pages", ErrDamaged, m.highWater)
	}
	w := &pageWalk{
		data:      data,
		pageSize:  uint64(pageSize),
		highWater: m.highWater,
		present:   min(m.highWater, uint64(len(data)/pageSize)),
	}
	w.used = make([]uint64, w.present/64+1)
	if err := w.tree(m.root, 0, nil, nil, true); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err := w.freelist(m.freelist); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return int64(m.highWater) * int64(pageSize), nil
}

type metaPage struct {
	root, freelist, highWater, txid uint64
}

// newestMeta finds the meta page that bbolt will use, in the way it does, and refuses what bbolt would accept though
// it was never written like that.
func newestMeta(data []byte) (m metaPage, pageSize int, ok bool) {
	m0, size0, ok0 := parseMeta(data, 0)
	if ok0 {
		pageSize = size0
	} else {
		for at := 1024; at <= 16<<20 && at < len(data)-1024 && pageSize == 0; at *= 2 {
			if _, size, ok := parseMeta(data, at); ok {
				if size != at {
					return m, 0, false
				}
				pageSize = size
			}
		}
	}
	if pageSize < 1024 || pageSize > 1<<20 || pageSize&(pageSize-1) != 0 || len(data) < 2*pageSize {
		return m, 0, false
	}
	m1, size1, ok1 := parseMeta(data, pageSize)
	switch {
	case ok1 && size1 != pageSize, ok0 && m0.txid%2 != 0, ok1 && m1.txid%2 != 1:
		return m, 0, false
	case ok0 && (!ok1 || m0.txid > m1.txid):
		return m0, pageSize, true
	case ok1:
		return m1, pageSize, true
	}
	return m, 0, false
}

func parseMeta(data []byte, at int) (m metaPage, pageSize int, ok bool) {
	if at+pageHeader+metaSize > len(data) {
		return m, 0, false
	}
	p := data[at+pageHeader:][:metaSize]
	h := fnv.New64a()
	h.Write(p[:56])
	if u32(p, 0) != metaMagic || u32(p, 4) != metaVersion || u64(p, 56) != h.Sum64() {
		return m, 0, false
	}
	return metaPage{root: u64(p, 16), freelist: u64(p, 32), highWater: u64(p, 40), txid: u64(p, 48)}, int(u32(p, 8)), true
}

func u16(p []byte, at uint64) uint16 { return binary.NativeEndian.Uint16(p[at:]) }
func u32(p []byte, at uint64) uint32 { return binary.NativeEndian.Uint32(p[at:]) }
func u64(p []byte, at uint64) uint64 { return binary.NativeEndian.Uint64(p[at:]) }

type pageWalk struct {
	data      []byte
	pageSize  uint64
	highWater uint64   // pages the file may use
	present   uint64   // pages of those that the file has
	used      []uint64 // one bit per page
}

// page returns a page with its overflow, and marks it as used.
func (w *pageWalk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.present {
		return nil, fmt.Errorf("page %d is outside the file", id)
	}
	head := w.data[id*w.pageSize:]
	overflow := uint64(u32(head, 12))
	switch {
	case u64(head, 0) != id:
		return nil, fmt.Errorf("page %d says that it is page %d", id, u64(head, 0))
	case overflow >= w.present-id:
		return nil, fmt.Errorf("page %d ends outside the file", id)
	}
	for n := id; n <= id+overflow; n++ {
		if w.inUse(n) {
			return nil, fmt.Errorf("page %d is used twice", n)
		}
		w.used[n/64] |= 1 << (n % 64)
	}
	return head[:(overflow+1)*w.pageSize], nil
}

func (w *pageWalk) inUse(id uint64) bool { return w.used[id/64]&(1<<(id%64)) != 0 }

// tree walks the pages of one bucket. Keys must lie in [low, high); nil is no bound. The top tree holds buckets and
// nothing else, the others hold rows and nothing else.
func (w *pageWalk) tree(id uint64, depth int, low, high []byte, top bool) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d is too deep", id)
	}
	p, err := w.page(id)
	if err != nil {
		return err
	}
	switch flags := u16(p, 8); flags {
	case flagLeaf:
		if u16(p, 10) == 0 && depth > 0 {
			return fmt.Errorf("page %d is empty", id)
		}
		return w.leaf(p, id, low, high, top)
	case flagBranch:
		return w.branch(p, id, depth, low, high, top)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
}

func (w *pageWalk) branch(p []byte, id uint64, depth int, low, high []byte, top bool) error {
	count := uint64(u16(p, 10))
	if count == 0 || pageHeader+count*elementSize > uint64(len(p)) {
		return fmt.Errorf("page %d holds %d branches", id, count)
	}
	key := func(i uint64) ([]byte, error) {
		at := pageHeader + i*elementSize
		return slice(p, at, uint64(u32(p, at)), uint64(u32(p, at+4)), id)
	}
	k, err := key(0)
	if err != nil {
		return err
	}
	for i := range count {
		if !inOrder(low, k, high) {
			return fmt.Errorf("page %d has keys out of order", id)
		}
		next := high
		if i+1 < count {
			if next, err = key(i + 1); err != nil {
				return err
			}
			if bytes.Compare(k, next) >= 0 {
				return fmt.Errorf("page %d has keys out of order", id)
			}
		}
		if err := w.tree(u64(p, pageHeader+i*elementSize+8), depth+1, k, next, top); err != nil {
			return err
		}
		k = next
	}
	return nil
}

func (w *pageWalk) leaf(p []byte, id uint64, low, high []byte, top bool) error {
	count := uint64(u16(p, 10))
	if pageHeader+count*elementSize > uint64(len(p)) {
		return fmt.Errorf("page %d holds %d rows", id, count)
	}
	var last []byte
	for i := range count {
		at := pageHeader + i*elementSize
		flags, pos, ksize, vsize := u32(p, at), uint64(u32(p, at+4)), uint64(u32(p, at+8)), uint64(u32(p, at+12))
		k, err := slice(p, at, pos, ksize, id)
		if err != nil {
			return err
		}
		if !inOrder(low, k, high) || (last != nil && bytes.Compare(last, k) >= 0) {
			return fmt.Errorf("page %d has keys out of order", id)
		}
		last = k
		if at+pos+ksize+vsize > uint64(len(p)) {
			return fmt.Errorf("page %d has a value outside of it", id)
		}
		switch {
		case top && flags == flagBucket:
			if err := w.bucket(p[at+pos+ksize:][:vsize], id); err != nil {
				return err
			}
		case top || flags != 0:
			return fmt.Errorf("page %d has a row with flags %#x", id, flags)
		}
	}
	return nil
}

func (w *pageWalk) bucket(value []byte, id uint64) error {
	if len(value) < 16 {
		return fmt.Errorf("page %d has a bucket of %d bytes", id, len(value))
	}
	if root := u64(value, 0); root != 0 {
		return w.tree(root, 0, nil, nil, false)
	}
	inline := value[16:]
	if len(inline) < pageHeader || u16(inline, 8) != flagLeaf {
		return fmt.Errorf("page %d has an inline bucket without a leaf", id)
	}
	return w.leaf(inline, id, nil, nil, false)
}

func (w *pageWalk) freelist(id uint64) error {
	p, err := w.page(id)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	if flags := u16(p, 8); flags != flagFreelist {
		return fmt.Errorf("free list: page %d has flags %#x", id, flags)
	}
	ids := p[pageHeader:]
	count := uint64(u16(p, 10))
	if count == 0xFFFF {
		count, ids = u64(ids, 0), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return fmt.Errorf("free list: %d pages do not fit", count)
	}
	var last uint64
	for i := range count {
		free := u64(ids, 8*i)
		if free < 2 || free >= w.highWater || free <= last || (free < w.present && w.inUse(free)) {
			return fmt.Errorf("free list: page %d is not free", free)
		}
		last = free
	}
	return nil
}

// slice returns a key: size bytes, pos bytes behind the element at.
func slice(p []byte, at, pos, size, id uint64) ([]byte, error) {
	if size == 0 || size > maxKeySize || at+pos+size > uint64(len(p)) {
		return nil, fmt.Errorf("page %d has a key outside of it", id)
	}
	return p[at+pos:][:size], nil
}

func inOrder(low, k, high []byte) bool {
	return (low == nil || bytes.Compare(low, k) <= 0) && (high == nil || bytes.Compare(k, high) < 0)
}
