package audit

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The log is a folder of segments, numbered from 1 without gaps:
//
//	NNNNNNNN.jsonl        entries; the first is segment.opened, and in a closed
//	                      segment the last is key.handover
//	NNNNNNNN.pruned       what audit prune leaves of a segment: its first and last line
//	NNNNNNNN.pruning      the same, before it is certain that it will be pruned
//	NNNNNNNN.tmp          a segment being made; left over after a crash, and removed
//	NNNNNNNN.torn-OFFSET  bytes that were cut off the segment at OFFSET and set aside
//
// A segment whose fdatasync failed is abandoned: it has no key.handover, it
// ends at the offset that the void of the next segment.opened names, and what
// may stand behind that does not count.
const (
	segmentDigits = 8
	segmentSuffix = ".jsonl"
	prunedSuffix  = ".pruned"
	pruningSuffix = ".pruning"
	tempSuffix    = ".tmp"
	tornInfix     = ".torn-"
	maxSegment    = 99_999_999
)

func segmentName(number uint32) string { return fileName(number, segmentSuffix) }
func prunedName(number uint32) string  { return fileName(number, prunedSuffix) }
func pruningName(number uint32) string { return fileName(number, pruningSuffix) }

func fileName(number uint32, suffix string) string {
	return fmt.Sprintf("%0*d%s", segmentDigits, number, suffix)
}

// segment is what the log remembers of one file.
type segment struct {
	number uint32
	first  uint64 // seq of its first entry
	end    int64  // entries end here: size, offset of the void, or, in the open one, what is durable
	pruned bool

	pruning bool // something that pruning made stands beside it
	doubled bool // and that is a .pruned
}

// listSegments returns the segments in dir, ascending and without a gap, and
// the names of temporary files. Of first and end nothing is filled in.
func listSegments(dir string) (segments []segment, temporary []string, err error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	byNumber := map[uint32]struct{ whole, stub, making bool }{}
	for _, name := range names {
		number, suffix, ok := cutName(name.Name())
		if !ok {
			continue
		}
		s := byNumber[number]
		switch suffix {
		case segmentSuffix:
			s.whole = true
		case prunedSuffix:
			s.stub = true
		case pruningSuffix:
			s.making = true
		case tempSuffix, pruningSuffix + tempSuffix:
			temporary = append(temporary, name.Name())
			continue
		default:
			continue
		}
		byNumber[number] = s
	}
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		s := byNumber[number]
		if number != uint32(len(segments))+1 || !s.whole && !s.stub {
			return nil, nil, fmt.Errorf("%w: segment %d is missing", ErrDamaged, len(segments)+1)
		}
		segments = append(segments, segment{
			number: number, pruned: !s.whole, pruning: s.whole && (s.stub || s.making), doubled: s.whole && s.stub,
		})
	}
	return segments, temporary, nil
}

// cutName takes the name of a file of the log apart.
func cutName(name string) (number uint32, suffix string, ok bool) {
	if len(name) < segmentDigits || len(name) > segmentDigits && name[segmentDigits] != '.' {
		return 0, "", false
	}
	n, err := strconv.ParseUint(name[:segmentDigits], 10, 32)
	return uint32(n), name[segmentDigits:], err == nil && n > 0
}

func (s segment) name() string {
	if s.pruned {
		return prunedName(s.number)
	}
	return segmentName(s.number)
}

// setAsideNames returns the files that hold what was cut off number at offset.
func setAsideNames(dir string, number uint32, offset int64) ([]string, error) {
	name := fmt.Sprintf("%0*d%s%d", segmentDigits, number, tornInfix, offset)
	var found []string
	for i := 0; ; i++ {
		candidate := name
		if i > 0 {
			candidate += "." + strconv.Itoa(i)
		}
		if _, err := os.Lstat(filepath.Join(dir, candidate)); os.IsNotExist(err) {
			return append(found, candidate), nil
		} else if err != nil {
			return nil, err
		}
		found = append(found, candidate)
	}
}
