package daemon

import (
	"slices"
	"sync"
)

// hub tells watching runs that something may have changed for them. It carries
// no facts: a watcher asks again under its own subject, so nobody is ever told
// of what it may not read.
type hub struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
	changed  chan struct{} // capacity 1; something has changed for anybody
}

// watcher is one Watch stream. Changes coalesce until it looks.
type watcher struct {
	subject string
	dirty   chan struct{} // capacity 1

	mu      sync.Mutex
	list    bool
	updated []string
}

func newHub() *hub {
	return &hub{watchers: map[*watcher]struct{}{}, changed: make(chan struct{}, 1)}
}

func (h *hub) watch(subject string) *watcher {
	w := &watcher{subject: subject, dirty: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers[w] = struct{}{}
	return w
}

func (h *hub) unwatch(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// listChanged marks the lists of the subjects; none named means all.
func (h *hub) listChanged(subjects ...string) {
	h.each(func(w *watcher) {
		if len(subjects) == 0 || slices.Contains(subjects, w.subject) {
			w.mark(func() { w.list = true })
		}
	})
}

// updated marks one resource as having other content.
func (h *hub) updated(name string) {
	h.each(func(w *watcher) {
		w.mark(func() {
			if !slices.Contains(w.updated, name) {
				w.updated = append(w.updated, name)
			}
		})
	})
}

func (h *hub) each(fn func(*watcher)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		fn(w)
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) mark(fn func()) {
	w.mu.Lock()
	fn()
	w.mu.Unlock()
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// take returns what was marked since the last call.
func (w *watcher) take() (list bool, updated []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list, updated = w.list, w.updated
	w.list, w.updated = false, nil
	return list, updated
}
