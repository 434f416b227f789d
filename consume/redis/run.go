package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
)

// Run consumes until ctx ends. Then it finishes the transactions that are under way, within the ShutdownTimeout,
// acknowledges what is settled, and returns nil. It returns an error if a stream does not exist, access is refused, no
// server answers at the start, or the database is not migrated: see the Err variables and receive.Stop. Nothing is lost
// then: the next Run continues from there.
func (r *Receiver) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return fmt.Errorf("run Redis receiver: %w", ErrRunning)
	}
	defer r.running.Store(false)
	began := time.Now()
	err := r.run(ctx)
	if err != nil && ctx.Err() == nil {
		r.log.Error("Redis receiver has stopped", "ran", time.Since(began).Round(time.Millisecond), "error", err)
		return err
	}
	r.log.Info("Redis receiver has stopped", "ran", time.Since(began).Round(time.Millisecond))
	return nil
}

func (r *Receiver) run(outer context.Context) error {
	ctx, stop := context.WithCancelCause(outer)
	defer stop(nil)
	if err := r.receiver.Ready(ctx); err != nil {
		return err
	}
	reads, err := r.cfg.client(readTimeout)
	if err != nil {
		return err
	}
	// The client does not end a command when a context does. A read may be cut off: its entries come again.
	closed := context.AfterFunc(ctx, func() { _ = reads.Close() })
	defer func() {
		if closed() {
			_ = reads.Close()
		}
	}()
	acks, err := r.cfg.client(askTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = acks.Close() }()
	r.log.Info("Redis receiver has started", "servers", r.cfg.servers(), "streams", r.cfg.Streams)
	several := r.cfg.Options != nil && len(r.cfg.Options.Addrs) > 1
	var running sync.WaitGroup
	for _, name := range r.cfg.Streams {
		s := &stream{
			r: r, name: name, reads: reads, acks: acks, log: r.log.With("stream", name),
			trouble: trouble{limit: r.cfg.StartTimeout, secure: r.cfg.secure(), several: several},
		}
		running.Go(func() {
			if err := s.run(ctx); err != nil {
				stop(err)
			}
		})
	}
	running.Go(func() {
		if err := r.receiver.Run(ctx); err != nil {
			stop(err)
		}
	})
	<-ctx.Done()
	running.Wait()
	return context.Cause(ctx)
}

// stream is what Run knows about one of its streams. One goroutine uses it.
type stream struct {
	r           *Receiver
	name        string
	reads, acks goredis.UniversalClient
	log         *slog.Logger
	trouble     trouble
	known       bool // this Run has found or created the group
	trimmed     trimmed
}

// run consumes the stream until ctx ends.
func (s *stream) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.term(ctx)
		var end *endError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &end):
			return fmt.Errorf("consume %s/%s: %w", s.name, s.r.cfg.Group, end.err)
		case errors.Is(err, errLockLost):
			s.log.Warn("the lock of the stream was lost: the process takes it again, or another one does", "error", err)
			continue
		case errors.Is(err, errNoGroup): // the next term creates it
			backoff.Sleep(ctx, 50*time.Millisecond)
			continue
		}
		if !s.trouble.is() {
			s.log.Warn("Redis does not answer as it should: entries wait", "servers", s.r.cfg.servers(), "error", err)
		}
		if final := s.trouble.note(err, time.Now()); final != nil {
			return fmt.Errorf("consume %s/%s: ask %s: %w", s.name, s.r.cfg.Group, s.r.cfg.servers(), final)
		}
		moved(ctx, s.reads)
		backoff.Sleep(ctx, backoff.Delay(50*time.Millisecond, 2*time.Second, s.trouble.failures))
	}
	return nil
}

// answered notes that Redis answers as it should.
func (s *stream) answered() {
	if s.trouble.is() {
		s.log.Info("Redis answers again", "after", time.Since(s.trouble.began).Round(time.Millisecond))
	}
	s.trouble = trouble{limit: s.trouble.limit, secure: s.trouble.secure, several: s.trouble.several, answered: true}
}

// endError is an error that ends Run.
type endError struct{ err error }

// Error implements error.
func (e *endError) Error() string { return e.err.Error() }

// trouble is a time in which Redis does not answer as it should.
type trouble struct {
	limit    time.Duration
	secure   bool // TLS
	several  bool // addresses
	answered bool // before
	began    time.Time
	kind     error     // ErrRefused, ErrTLS, ErrNoStream, ErrNotStream, or nil for what passes by itself
	since    time.Time // that kind
	failures int
	hung     int // connections that were closed without an answer
}

func (t *trouble) is() bool { return !t.began.IsZero() }

// maxHung is how many connections in a row may be closed at the start until that is a refusal.
const maxHung = 5

// note takes an error. It returns one if waiting is over.
func (t *trouble) note(err error, now time.Time) error {
	if !t.is() {
		t.began = now
	}
	t.failures++
	var kind error
	for _, one := range [...]error{ErrRefused, ErrTLS, ErrNoStream, ErrNotStream} {
		if errors.Is(err, one) {
			kind = one
		}
	}
	if errors.Is(err, io.EOF) && !t.answered {
		if t.hung++; t.hung >= maxHung {
			kind = ErrTLS
			err = fmt.Errorf("%w: the server closes each connection without an answer: %w: "+
				"check the port, and whether it wants TLS: rediss:// in Config.URL, or TLSConfig in Config.Options", ErrTLS, err)
		}
	}
	if t.since.IsZero() || t.kind != kind {
		t.kind, t.since = kind, now
	}
	limit := t.limit
	switch {
	case kind == nil && t.answered:
		return nil
	case (kind == ErrRefused || kind == ErrTLS) && !t.answered:
		limit = 0
		if t.several {
			limit = min(t.limit, askTimeout)
		}
	}
	switch {
	case now.Sub(t.since) < limit:
		return nil
	case kind == nil && t.secure:
		return fmt.Errorf("%w: %w: check the address, and whether the port has TLS", ErrUnreachable, err)
	case kind == nil:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}
