package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// caller is worker for handlers of batches.
func (b *batch) caller() { b.callOn(nil) }

// callOn makes the calls of c, if it is not nil, and then others until none may be made.
func (b *batch) callOn(c *core.Call) {
	over := false
	defer func() {
		if over || b.s.run.inline != nil {
			b.end()
		} else {
			go b.callOn(c)
		}
	}()
	now := time.Now()
	for {
		if c == nil {
			if c = b.nextCall(now); c == nil {
				break
			}
		}
		b.handleCall(now, c, func(ended time.Time, more bool) {
			if now = ended; !more {
				c = nil
			}
		})
	}
	over = true
}

// nextCall returns the next call, or nil if none may be made.
func (b *batch) nextCall(now time.Time) *core.Call {
	b.lock()
	defer b.mu.Unlock()
	return b.core.NextCall(now)
}

// handleCall makes one call of a handler and records its results. It tells done when that ended, and whether c has more
// calls. It recovers from panics, and reports runtime.Goexit, which still ends the goroutine. The rate is asked when nothing
// is left to do before the call.
func (b *batch) handleCall(began time.Time, c *core.Call, done func(ended time.Time, more bool)) {
	l := b.s.l
	m := &made{b: b, h: l.of(c.Entries()[0])}
	usercode.Run("handler", func() error {
		m.decode(c)
		return m.inSavepoint(func(tx pgx.Tx) error {
			n := b.mayCall(c)
			if m.limited = n == 0; m.limited {
				return errLimited
			}
			if m.all = m.all[:n]; l.hooks.WantsCalls() {
				m.told = m.events()
				l.hooks.Started(b.work, m.told)
				began = time.Now()
			}
			return m.call(b.work, tx)
		})
	}, func(err error) {
		ended := time.Now()
		if m.limited {
			done(ended, false)
			return
		}
		results, whole := m.results(c.Entries(), ended.Sub(began), err)
		if m.h != nil {
			m.h.target.OnResults(ended, began, core.IDs(c.Entries()), results)
		}
		if crashed, ok := err.(*usercode.Crash); ok { // ours, as it came from usercode
			l.log.Debug("handler did not return", slog.Any("", c.Entries()[0].Event), "events", len(results),
				"stack", crashed.Error())
		}
		b.lock()
		more := c.Finish(ended, results, whole)
		b.mu.Unlock()
		done(ended, more)
	})
}

// made is one call of a handler of batches.
type made struct {
	b       *batch
	h       *served // nil if the listener does not read the topic any more
	all     []decoded
	refused error          // instead of the call, if its only event cannot be decoded
	told    []outbox.Event // nil if nobody is told
	named   []error        // one for each event, if the handler has named those that failed
	limited bool           // the rate does not allow it yet
}

// decode decodes the payloads of a call. The call ends before the first that cannot be decoded, which is then alone in
// the next one, so that no event of its key overtakes it.
func (m *made) decode(c *core.Call) {
	for i, e := range c.Entries() {
		d := decoded{event: e.Event}
		if m.refused = m.decodeOne(e, &d); m.refused != nil {
			cut := max(i, 1)
			m.b.mu.Lock()
			c.Cut(cut)
			m.b.mu.Unlock()
			if i > 0 {
				m.refused = nil
				return
			}
		}
		m.all = append(m.all, d)
		if m.refused != nil {
			return
		}
	}
}

func (m *made) decodeOne(e *core.Entry, d *decoded) (err error) {
	if m.h == nil { // it was parked when the listener still read its topic
		return outbox.Permanent(fmt.Errorf("%s/%s: %w", e.Namespace, e.Topic, outbox.ErrUnimplemented))
	}
	d.payload, err = config.OpenPayload(m.b.work, m.h.decoder, &e.Event, e.Payload)
	return err
}

// events returns the events of the call.
func (m *made) events() []outbox.Event {
	events := make([]outbox.Event, len(m.all))
	for i, d := range m.all {
		events[i] = d.event
	}
	return events
}

// inSavepoint runs call, in a savepoint if there is a handler.
func (m *made) inSavepoint(call func(pgx.Tx) error) error {
	if m.h == nil {
		return call(nil)
	}
	return m.b.inSavepoint(m.b.work, call)
}

// call calls the handler inside the middleware, once for the whole batch. If it has named the events that failed, that is
// not an error.
func (m *made) call(ctx context.Context, tx pgx.Tx) error {
	err := report.Chain(ctx, m.middleware(), m.all[0].event, func(ctx context.Context) error {
		if m.refused != nil {
			return m.refused
		}
		return m.h.runBatch(ctx, tx, m.all)
	})
	if err != nil && m.names(err) {
		return nil
	}
	return err
}

func (m *made) middleware() []outbox.Middleware {
	if m.h == nil {
		return nil
	}
	return m.b.s.l.cfg.Middleware
}

// names reports whether err names events of the call that have failed. Its methods are user code.
func (m *made) names(err error) bool {
	var named []error
	trouble := usercode.Call("error", usercode.Limit, func() error {
		var failed *outbox.BatchError
		if !errors.As(err, &failed) || failed == nil {
			return nil
		}
		errs, any := make([]error, len(m.all)), failed.Err() == nil
		for i, d := range m.all {
			errs[i] = failed.Of(d.event)
			any = any || errs[i] != nil
		}
		if any {
			named = errs
		}
		return nil
	})
	if trouble != nil || named == nil {
		return false
	}
	m.named = named
	return true
}

// results returns the results of the events of a call that has returned err, and whether it failed as a whole. It tells
// the observer.
func (m *made) results(entries []*core.Entry, took time.Duration, err error) (results []errclass.Result, whole bool) {
	errs := m.named
	if whole = err != nil || errs == nil; whole {
		errs = make([]error, len(entries))
		for i := range errs {
			errs[i] = err
		}
	}
	if m.told != nil {
		m.b.s.l.hooks.Finished(m.b.work, m.told, errs, took)
	}
	if !whole {
		return errclass.All(errs), false
	}
	results = make([]errclass.Result, len(entries))
	one := errclass.Of(err)
	for i := range results {
		results[i] = one
	}
	return results, err != nil
}
