// Package worker runs several dispatchers, listeners and receivers of consumers as one: until a context ends, or,
// without receivers, once to drain what is due, from a command or over HTTP. `outboxgen init --worker` writes a program
// that uses it.
//
//	w, err := worker.New(
//		worker.Part{Name: "mini_chat", Runner: dispatcher},
//		worker.Part{Name: "companion", Runner: listener},
//	)
//	if err != nil {
//		return err
//	}
//	return w.Run(ctx) // until ctx ends
//
// It needs neither the package queue nor the package listener: a program links only what it runs.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/isnil"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/outbox"
)

// Runner runs until ctx ends, and then returns nil: a *queue.Dispatcher, a *listener.Listener, or a *Receiver of
// consume/kafka, consume/nats, consume/amqp, consume/redis or consume/receive.
type Runner interface {
	Run(ctx context.Context) error
}

// Drainer is a Runner that also handles what is due, and ends: a *queue.Dispatcher or a *listener.Listener. A worker
// can drain only if all its parts are Drainers. A receiver is none: its broker decides when a message comes.
type Drainer interface {
	Runner
	DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (outbox.DrainReport, error)
}

// Part is one dispatcher, listener or receiver of a worker.
type Part struct {
	// for reports and errors, for example the namespace, the listener or the consumer group; unique in the worker
	Name   string
	Runner Runner
}

// Worker runs its parts. Its methods may be called concurrently, but only one Run or drain is under way at a time.
type Worker struct {
	parts []Part
	busy  atomic.Bool // Run or a drain is under way
}

// New returns a worker of parts. It returns an error if there is none, or if one has no name or no runner or has the
// name of another.
func New(parts ...Part) (*Worker, error) {
	if len(parts) == 0 {
		return nil, errors.New("new worker: no parts")
	}
	names := make(map[string]bool)
	for i, p := range parts {
		switch {
		case p.Name == "":
			return nil, fmt.Errorf("new worker: part %d has no name", i+1)
		case names[p.Name]:
			return nil, fmt.Errorf("new worker: two parts have the name %q", p.Name)
		case isnil.Is(p.Runner):
			return nil, fmt.Errorf("new worker: part %q has no runner (nil)", p.Name)
		}
		names[p.Name] = true
	}
	return &Worker{parts: append([]Part(nil), parts...)}, nil
}

// errBusy is what a second Run or drain returns.
var errBusy = fmt.Errorf("the worker %w", outbox.ErrBusy)

// drainers returns the parts as Drainers, or an error that names a part that cannot be drained.
func (w *Worker) drainers() ([]Drainer, error) {
	list := make([]Drainer, len(w.parts))
	for i, p := range w.parts {
		d, ok := p.Runner.(Drainer)
		if !ok {
			return nil, fmt.Errorf("part %q can run, but it cannot be drained: drain a worker without it", p.Name)
		}
		list[i] = d
	}
	return list, nil
}

// Run runs all parts until ctx ends, and returns when all have stopped. They stop concurrently, each as its own Run
// does. If one of them ends before that, the others are stopped too, because nobody would notice that one is missing.
// The error then names it. Run returns an error that wraps outbox.ErrBusy if this worker runs or drains already.
func (w *Worker) Run(ctx context.Context) error {
	if !w.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("run worker: %w", errBusy)
	}
	defer w.busy.Store(false)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, len(w.parts))
	var running sync.WaitGroup
	for i, p := range w.parts {
		running.Go(func() {
			defer stop()
			if err := p.Runner.Run(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", p.Name, err)
			}
		})
	}
	running.Wait()
	return errtext.Join(errs...)
}

// Report says what a drain of a worker did. The embedded DrainReport is the sum of the parts, with what rests in any of
// them. Its Ended is that of the part that stopped farthest from the end of its events: EndStopped, then EndTime, then
// EndEvents, then EndDrained.
//
// As JSON it is an object with the fields of DrainReport, more, took (a duration such as "1.5s") and parts.
type Report struct {
	outbox.DrainReport
	Took  time.Duration
	Parts []PartReport // in the order of New
}

// PartReport says what a drain of one part did.
type PartReport struct {
	Name string `json:"name"`
	outbox.DrainReport
}

// More reports whether more events may be due, because the drain of a part ended before it had come to the end.
func (r Report) More() bool { return r.Ended != outbox.EndDrained }

// MarshalJSON returns r as JSON.
func (r Report) MarshalJSON() ([]byte, error) { return json.Marshal(r.wire("")) }

// wireReport is a Report in JSON.
type wireReport struct {
	Error string `json:"error,omitempty"`
	outbox.DrainReport
	More  bool         `json:"more"`
	Took  string       `json:"took"`
	Parts []PartReport `json:"parts"`
}

func (r Report) wire(fault string) wireReport {
	return wireReport{
		Error: fault, DrainReport: r.DrainReport, More: r.More(), Took: r.Took.Round(time.Millisecond).String(),
		Parts: append([]PartReport{}, r.Parts...),
	}
}

// DrainUpTo drains all parts concurrently, each within limit, so that none waits behind the backlog of another: with
// Events 100 and two parts, at most 200 events are handled. An error of one part does not stop the others. The error
// names the parts that failed, and the report has what was done nevertheless. When ctx ends, all stop as at a bound,
// and DrainUpTo returns the error of ctx. It returns an error that wraps outbox.ErrBusy if this worker runs or drains
// already, and before it drains anything, an error that names a part that is not a Drainer. Any number of processes may
// drain concurrently: each event is handled by one of them.
func (w *Worker) DrainUpTo(ctx context.Context, limit outbox.DrainLimit) (Report, error) {
	began := time.Now()
	if !w.busy.CompareAndSwap(false, true) {
		return Report{DrainReport: outbox.DrainReport{Ended: outbox.EndStopped}}, fmt.Errorf("drain worker: %w", errBusy)
	}
	defer w.busy.Store(false)
	drainers, err := w.drainers()
	if err != nil {
		return Report{DrainReport: outbox.DrainReport{Ended: outbox.EndStopped}}, fmt.Errorf("drain worker: %w", err)
	}
	r := Report{Parts: make([]PartReport, len(w.parts))}
	errs := make([]error, len(w.parts))
	var draining sync.WaitGroup
	for i, p := range w.parts {
		r.Parts[i] = PartReport{Name: p.Name, DrainReport: outbox.DrainReport{Ended: outbox.EndStopped}}
		draining.Go(func() {
			usercode.Run("drain", func() (err error) {
				report, err := drainers[i].DrainUpTo(ctx, limit)
				r.Parts[i].DrainReport = report
				return err
			}, func(err error) {
				if err != nil {
					errs[i] = fmt.Errorf("%s: %w", p.Name, err)
				}
			})
		})
	}
	draining.Wait()
	for _, p := range r.Parts {
		r.Add(p.DrainReport)
		r.Resting = append(r.Resting, p.Resting...)
		r.Ended = max(r.Ended, p.Ended)
	}
	r.Took = time.Since(began)
	return r, errtext.Join(errs...)
}
