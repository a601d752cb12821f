package vault

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
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
	pageHeader   = 16
	elementSize  = 16
	metaSize     = 64
	bucketHeader = 16

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
// list that names pages in use. What cannot be reached is not looked at, and values are not read. It returns the size
// that the file's mapping needs.
//
// It reads instead of mapping: a file that is cut meanwhile is an error then and not a fault, and reading each page once
// is faster than faulting it in.
func checkPages(f io.ReaderAt, size int64) (mapping int64, err error) {
	if size < 4*1024 || size > maxFileSize {
		return 0, fmt.Errorf("%w: a file of %d bytes", ErrDamaged, size)
	}
	m, pageSize, err := newestMeta(f, size)
	if err != nil {
		return 0, err
	}
	if m.highWater > uint64(maxFileSize/pageSize) {
		return 0, fmt.Errorf("%w: %d pages", ErrDamaged, m.highWater)
	}
	w := &pageWalk{
		f:         f,
		pageSize:  uint64(pageSize),
		highWater: m.highWater,
		present:   min(m.highWater, uint64(size/pageSize)),
	}
	w.used = make([]uint64, w.present/64+1)
	if err := w.tree(m.root, 0, nil, nil, true); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err := w.freelist(m.freelist); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return int64(m.highWater) * pageSize, nil
}

type metaPage struct {
	root, freelist, highWater, txid uint64
}

// newestMeta finds the meta page that bbolt will use, in the way it does, and refuses what bbolt would accept though
// it was never written like that.
func newestMeta(f io.ReaderAt, size int64) (m metaPage, pageSize int64, err error) {
	none := fmt.Errorf("%w: no valid meta page", ErrDamaged)
	m0, size0, ok0, err := readMeta(f, 0)
	if err != nil {
		return m, 0, err
	}
	if ok0 {
		pageSize = size0
	}
	for at := int64(1024); at <= 16<<20 && at < size-1024 && pageSize == 0; at *= 2 {
		_, said, ok, err := readMeta(f, at)
		if err != nil {
			return m, 0, err
		}
		if ok && said != at {
			return m, 0, none
		}
		if ok {
			pageSize = said
		}
	}
	if pageSize < 1024 || pageSize > 1<<20 || pageSize&(pageSize-1) != 0 || size < 2*pageSize {
		return m, 0, none
	}
	m1, size1, ok1, err := readMeta(f, pageSize)
	switch {
	case err != nil:
		return m, 0, err
	case ok1 && size1 != pageSize, ok0 && m0.txid%2 != 0, ok1 && m1.txid%2 != 1:
		return m, 0, none
	case ok0 && (!ok1 || m0.txid > m1.txid):
		return m0, pageSize, nil
	case ok1:
		return m1, pageSize, nil
	}
	return m, 0, none
}

func readMeta(f io.ReaderAt, at int64) (m metaPage, pageSize int64, ok bool, err error) {
	var p [metaSize]byte
	if _, err := f.ReadAt(p[:], at+pageHeader); errors.Is(err, io.EOF) {
		return m, 0, false, nil
	} else if err != nil {
		return m, 0, false, err
	}
	h := fnv.New64a()
	h.Write(p[:56])
	if u32(p[:], 0) != metaMagic || u32(p[:], 4) != metaVersion || u64(p[:], 56) != h.Sum64() {
		return m, 0, false, nil
	}
	m = metaPage{root: u64(p[:], 16), freelist: u64(p[:], 32), highWater: u64(p[:], 40), txid: u64(p[:], 48)}
	return m, int64(u32(p[:], 8)), true, nil
}

func u16(p []byte, at uint64) uint16 { return binary.NativeEndian.Uint16(p[at:]) }
func u32(p []byte, at uint64) uint32 { return binary.NativeEndian.Uint32(p[at:]) }
func u64(p []byte, at uint64) uint64 { return binary.NativeEndian.Uint64(p[at:]) }

type pageWalk struct {
	f         io.ReaderAt
	pageSize  uint64
	highWater uint64   // pages the file may use
	present   uint64   // pages of those that the file has
	used      []uint64 // one bit per page
	spare     [][]byte // memory of pages that are done with
}

// page is a page with its overflow, of which only the first piece is in memory.
type page struct {
	w    *pageWalk
	id   uint64
	size uint64
	head []byte
}

// page reads a page, and marks it and its overflow as used. The caller gives it back with done.
func (w *pageWalk) page(id uint64) (*page, error) {
	if id < 2 || id >= w.present {
		return nil, fmt.Errorf("page %d is outside the file", id)
	}
	p := &page{w: w, id: id}
	if n := len(w.spare); n > 0 {
		p.head, w.spare = w.spare[n-1], w.spare[:n-1]
	} else {
		p.head = make([]byte, w.pageSize)
	}
	if _, err := w.f.ReadAt(p.head, int64(id*w.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	overflow := uint64(u32(p.head, 12))
	switch {
	case u64(p.head, 0) != id:
		return nil, fmt.Errorf("page %d says that it is page %d", id, u64(p.head, 0))
	case overflow >= w.present-id:
		return nil, fmt.Errorf("page %d ends outside the file", id)
	}
	for n := id; n <= id+overflow; n++ {
		if w.inUse(n) {
			return nil, fmt.Errorf("page %d is used twice", n)
		}
		w.used[n/64] |= 1 << (n % 64)
	}
	p.size = (overflow + 1) * w.pageSize
	return p, nil
}

func (w *pageWalk) inUse(id uint64) bool { return w.used[id/64]&(1<<(id%64)) != 0 }

func (p *page) flags() uint16 { return u16(p.head, 8) }
func (p *page) count() uint64 { return uint64(u16(p.head, 10)) }
func (p *page) done()         { p.w.spare = append(p.w.spare, p.head) }

// bytes returns a piece of the page. It points into the page as long as the first piece reaches.
func (p *page) bytes(at, n uint64) ([]byte, error) {
	switch {
	case at+n > p.size:
		return nil, fmt.Errorf("page %d ends before %d", p.id, at+n)
	case at+n <= uint64(len(p.head)):
		return p.head[at:][:n], nil
	}
	piece := make([]byte, n)
	if _, err := p.w.f.ReadAt(piece, int64(p.id*p.w.pageSize+at)); err != nil {
		return nil, fmt.Errorf("page %d: %w", p.id, err)
	}
	return piece, nil
}

// tree walks the pages of one bucket. Keys must lie in [low, high), and the first must be low itself: bbolt finds a page's place
// in its parent by that key, and writes a second one where it does not match. Nil is no bound. The top tree holds buckets
// and nothing else, the others hold rows and nothing else.
func (w *pageWalk) tree(id uint64, depth int, low, high []byte, top bool) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d is too deep", id)
	}
	p, err := w.page(id)
	if err != nil {
		return err
	}
	defer p.done()
	switch flags := p.flags(); flags {
	case flagLeaf:
		if p.count() == 0 && depth > 0 {
			return fmt.Errorf("page %d is empty", id)
		}
		return w.leaf(p, 0, low, high, top)
	case flagBranch:
		return w.branch(p, depth, low, high, top)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
}

func (w *pageWalk) branch(p *page, depth int, low, high []byte, top bool) error {
	count := p.count()
	elements, err := p.bytes(pageHeader, count*elementSize)
	if err != nil {
		return err
	}
	if count == 0 {
		return fmt.Errorf("page %d is empty", p.id)
	}
	key := func(i uint64) ([]byte, error) {
		at := i * elementSize
		return p.key(pageHeader+at+uint64(u32(elements, at)), uint64(u32(elements, at+4)))
	}
	k, err := key(0)
	if err != nil {
		return err
	}
	for i := range count {
		if !inOrder(low, k, high, i == 0) {
			return fmt.Errorf("page %d has keys out of order", p.id)
		}
		next := high
		if i+1 < count {
			if next, err = key(i + 1); err != nil {
				return err
			}
			if bytes.Compare(k, next) >= 0 {
				return fmt.Errorf("page %d has keys out of order", p.id)
			}
		}
		if err := w.tree(u64(elements, i*elementSize+8), depth+1, k, next, top); err != nil {
			return err
		}
		k = next
	}
	return nil
}

// leaf walks the leaf that begins at start: a page's own, or the one inside an inline bucket.
func (w *pageWalk) leaf(p *page, start uint64, low, high []byte, top bool) error {
	head, err := p.bytes(start, pageHeader)
	if err != nil {
		return err
	}
	count := uint64(u16(head, 10))
	elements, err := p.bytes(start+pageHeader, count*elementSize)
	if err != nil {
		return err
	}
	var last []byte
	for i := range count {
		at := i * elementSize
		flags, ksize, vsize := u32(elements, at), uint64(u32(elements, at+8)), uint64(u32(elements, at+12))
		pos := start + pageHeader + at + uint64(u32(elements, at+4))
		k, err := p.key(pos, ksize)
		if err != nil {
			return err
		}
		if !inOrder(low, k, high, i == 0) || (last != nil && bytes.Compare(last, k) >= 0) {
			return fmt.Errorf("page %d has keys out of order", p.id)
		}
		last = k
		if pos+ksize+vsize > p.size {
			return fmt.Errorf("page %d has a value outside of it", p.id)
		}
		switch {
		case top && flags == flagBucket:
			if err := w.bucket(p, pos+ksize, vsize); err != nil {
				return err
			}
		case top || flags != 0:
			return fmt.Errorf("page %d has a row with flags %#x", p.id, flags)
		}
	}
	return nil
}

func (w *pageWalk) bucket(p *page, at, size uint64) error {
	if size < bucketHeader {
		return fmt.Errorf("page %d has a bucket of %d bytes", p.id, size)
	}
	head, err := p.bytes(at, bucketHeader)
	if err != nil {
		return err
	}
	if root := u64(head, 0); root != 0 {
		return w.tree(root, 0, nil, nil, false)
	}
	// The leaf inside must not reach beyond the value: a page that ends where the value does.
	value, err := p.bytes(at, size)
	if err != nil {
		return err
	}
	if size < bucketHeader+pageHeader || u16(value, bucketHeader+8) != flagLeaf {
		return fmt.Errorf("page %d has an inline bucket without a leaf", p.id)
	}
	return w.leaf(&page{w: w, id: p.id, size: size, head: value}, bucketHeader, nil, nil, false)
}

func (w *pageWalk) freelist(id uint64) error {
	p, err := w.page(id)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	defer p.done()
	if p.flags() != flagFreelist {
		return fmt.Errorf("free list: page %d has flags %#x", id, p.flags())
	}
	at, count := uint64(pageHeader), p.count()
	if count == 0xFFFF {
		count, at = u64(p.head, at), at+8
	}
	if count > p.size/8 {
		return fmt.Errorf("free list: %d pages do not fit", count)
	}
	ids, err := p.bytes(at, 8*count)
	if err != nil {
		return fmt.Errorf("free list: %w", err)
	}
	var last, beyond uint64
	for i := range count {
		free := u64(ids, 8*i)
		if free < 2 || free >= w.highWater || free <= last || (free < w.present && w.inUse(free)) {
			return fmt.Errorf("free list: page %d is not free", free)
		}
		last = free
		if free >= w.present {
			beyond++
		}
	}
	// A file that was cut still works if it only lost free pages. Without this, a meta page could claim any size.
	if beyond != w.highWater-w.present {
		return fmt.Errorf("the file ends %d pages early", w.highWater-w.present-beyond)
	}
	return nil
}

func (p *page) key(at, size uint64) ([]byte, error) {
	if size == 0 || size > maxKeySize {
		return nil, fmt.Errorf("page %d has a key of %d bytes", p.id, size)
	}
	return p.bytes(at, size)
}

func inOrder(low, k, high []byte, first bool) bool {
	if low != nil && first && !bytes.Equal(low, k) {
		return false
	}
	return (low == nil || bytes.Compare(low, k) <= 0) && (high == nil || bytes.Compare(k, high) < 0)
}
