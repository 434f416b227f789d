package dashboard

import (
	"context"
	"sync"
	"time"
)

// shared is something that is read from the database for all viewers together: at most one reading runs at a time,
// whatever the number of viewers.
type shared[T any] struct {
	ctx     context.Context // ends the readings
	running *sync.WaitGroup
	read    func(context.Context) (T, error)

	mu     sync.Mutex
	latest reading[T]
	now    chan struct{} // closed when the reading that is under way ends; nil if there is none
	again  bool          // what is under way began before forget
}

// reading is what was read, or the error.
type reading[T any] struct {
	value T // that of the latest reading without an error
	err   error
	at    time.Time // when the value was read; zero if never
	tried time.Time // when the latest reading ended, also if it failed
	took  time.Duration
	old   bool // something was changed since
}

// readLimit is how long one reading may take.
const readLimit = 2 * time.Minute

func newShared[T any](ctx context.Context, running *sync.WaitGroup, read func(context.Context) (T, error)) *shared[T] {
	return &shared[T]{ctx: ctx, running: running, read: read}
}

// get returns the latest reading. If it is older than fresh, get starts another one, and waits for it as long as wait
// says, or as long as ctx if there is no reading at all. A reading that takes long is not repeated all the time: for
// its next one it rests ten times as long as it took.
func (s *shared[T]) get(ctx context.Context, fresh, wait time.Duration) reading[T] {
	s.mu.Lock()
	age := time.Since(s.latest.tried)
	if !s.latest.old && !s.latest.tried.IsZero() && age < max(fresh, 10*s.latest.took) && s.ctx.Err() == nil {
		defer s.mu.Unlock()
		return s.latest
	}
	if s.now == nil && s.ctx.Err() == nil {
		s.now = make(chan struct{})
		s.running.Go(s.refresh)
	}
	now := s.now
	s.mu.Unlock()
	if now != nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-now:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

func (s *shared[T]) refresh() {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, readLimit)
		start := time.Now()
		value, err := s.read(ctx)
		cancel()
		s.mu.Lock()
		s.latest.err, s.latest.tried, s.latest.took = err, time.Now(), time.Since(start)
		if err == nil {
			s.latest.value, s.latest.at = value, start
		}
		if !s.again || s.ctx.Err() != nil {
			s.latest.old = false
			close(s.now)
			s.now = nil
			s.mu.Unlock()
			return
		}
		s.again = false
		s.mu.Unlock()
	}
}

// forget makes the next get read again, because something was changed.
func (s *shared[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest.old = true
	s.again = s.now != nil
}

// busy reports whether a reading is under way.
func (s *shared[T]) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now != nil
}
