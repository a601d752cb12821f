package vault

// rowStore keeps stored values by bucket and name. It knows nothing of keys. bbolt is behind it today; whatever comes
// beside it must give one writer at a time, readers that see one moment, and a commit that is durable when it returns.
type rowStore interface {
	// begin starts a transaction. A writing one waits for the writer before it.
	begin(write bool) (rowTx, error)
	// unchanged tells whether the path still names the file that is open: ErrReplaced if not.
	unchanged() error
	// close waits for running transactions, except after damage, when they could be stuck.
	close() error
}

// rowTx is one transaction. What it gives out are copies: a file that changes under its mapping faults inside the store,
// where it is caught, and nowhere else.
type rowTx interface {
	// get returns nil when there is no such row.
	get(bucket, name string) ([]byte, error)
	put(bucket, name string, value []byte) error
	del(bucket, name string) error
	buckets() ([]string, error)
	// scan fills b with rows after a name, in the order of their bytes, up to b's capacity in rows or bytes.
	// An empty b afterwards is the end.
	scan(bucket, after string, b *batch) error
	commit() error
	// rollback ends the transaction without effect. It does nothing after commit.
	rollback()
}

const (
	batchRows  = 1024
	batchBytes = 1 << 20
)

// batch is a run of rows whose values lie in one piece of reusable memory.
type batch struct {
	head   int // if not 0, how much of each value is kept
	bucket string
	names  []string
	ends   []int
	data   []byte
}

func (b *batch) reset(bucket string) {
	b.bucket = bucket
	b.names, b.ends, b.data = b.names[:0], b.ends[:0], b.data[:0]
}

func (b *batch) add(name, value []byte) {
	b.names = append(b.names, string(name))
	if b.head != 0 {
		value = value[:min(b.head, len(value))]
	}
	b.data = append(b.data, value...)
	b.ends = append(b.ends, len(b.data))
}

func (b *batch) full() bool { return len(b.names) >= batchRows || len(b.data) >= batchBytes }

func (b *batch) value(i int) []byte {
	start := 0
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.data[start:b.ends[i]:b.ends[i]]
}
