package queue

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/call/halves"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/payloads/decode"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// work is what a worker has to do: a task, or a batch.
type work struct {
	task  *task
	batch *batch
}

// batch is a call of a handler with several events, and the calls with some of them that follow if it fails as a whole.
type batch struct {
	run    *core.RunBatch
	ctx    context.Context
	cancel context.CancelCauseFunc
	begun  bool
	next   []*core.Task // of the next call; none if the batch is over
	search *halves.Search[*core.Task]
	why    errclass.Result // of the latest call that has failed as a whole
	left   int             // not reported
}

// startBatch gives the tasks of r to a worker.
func (l *loop) startBatch(r *core.RunBatch) {
	b := &batch{run: r, left: len(r.Tasks)}
	b.ctx, b.cancel = context.WithCancelCause(l.WorkCtx)
	for _, t := range r.Tasks {
		t := taskOf(t)
		t.ctx, t.cancel = b.ctx, b.cancel
	}
	l.give(work{batch: b})
}

// recalled takes notice that b was not begun.
func (b *batch) recalled() {
	b.cancel(nil)
	for _, t := range b.run.Tasks {
		taskOf(t).cancel = nil
	}
}

// handleBatch makes the calls of b. After a call that has ended its goroutine, another goroutine continues here.
func (l *loop) handleBatch(b *batch) {
	if !b.begun {
		l.beginBatch(b)
	}
	for len(b.next) > 0 {
		if b.search != nil && !l.maySearch(b) {
			l.endSearch(b)
			return
		}
		l.callBatch(b)
	}
}

// beginBatch leaves out what must not begin any more.
func (l *loop) beginBatch(b *batch) {
	b.begun = true
	cancelled := b.ctx.Err() != nil // perhaps because one of the leases was lost: the others are released
	var over []*core.Task
	for _, t := range b.run.Tasks {
		if l.ended(t) || late(t, "handled") {
			over = append(over, t)
		} else if t.Ended = cancelled; cancelled {
			over = append(over, t)
		} else {
			b.next = append(b.next, t)
		}
	}
	l.reportBatch(b, over)
}

// maySearch reports whether the next call of a search may begin: it has its leases, and somebody waits for it.
func (l *loop) maySearch(b *batch) (may bool) {
	if b.ctx.Err() != nil || l.calls != nil && l.ctx.Err() != nil {
		return false
	}
	l.ask(func() { may = l.core.Holds(time.Now(), b.next) })
	return may
}

// callBatch calls the handler with b.next. All user code is called here.
func (l *loop) callBatch(b *batch) {
	var events []outbox.Event
	ctx, cancel := context.WithCancel(b.ctx)
	told := false
	began := time.Now()
	usercode.Run("handler", func() error {
		h := l.d.handlers[taskOf(b.next[0]).claimed.Topic]
		payloads, unfit := l.openBatch(ctx, b, h.decoder)
		events = eventsOf(b.next)
		if len(events) == 0 {
			return nil
		}
		if told = l.d.hooks.WantsCalls(); told {
			l.d.hooks.Started(ctx, events)
		}
		began = time.Now()
		for _, t := range b.next {
			t.Began = began
		}
		return report.ChainBatch(ctx, l.d.cfg.BatchMiddleware, events, func(ctx context.Context) error {
			return callFit(ctx, h.runBatch, events, payloads, unfit)
		})
	}, func(err error) {
		if events == nil { // the opening of a payload has ended the goroutine
			events = eventsOf(b.next)
		}
		errs, each := errorsOf(err, events)
		if told {
			l.d.hooks.Finished(ctx, events, errs, time.Since(began))
		}
		cancel()
		crashed, crash := err.(*usercode.Crash) // ours, as it came from there
		if crash {
			l.d.log.Debug("handler of a batch did not return", slog.Any("", events[0]), "events", len(events), "stack",
				crashed.Error())
		}
		if each {
			l.answered(b, errclass.All(errs))
		} else {
			l.failed(b, errclass.Of(err))
		}
		if crash && crashed.Kind == "" && l.calls != nil && len(b.next) > 0 { // it has ended the caller's goroutine
			l.endSearch(b)
		}
	})
}

// openBatch opens the payloads of the next call of b. One that cannot be opened has an error in unfit. Events of limited rate
// that may not begin any more are left out of the first call.
func (l *loop) openBatch(ctx context.Context, b *batch, d *decode.Decoder) (payloads []any, unfit []error) {
	began := time.Now()
	tasks := b.next
	for _, t := range tasks {
		t.Tried, t.Began = true, began
	}
	payloads, unfit = make([]any, len(tasks)), make([]error, len(tasks))
	for i, t := range tasks {
		c := taskOf(t).claimed
		payloads[i], unfit[i] = config.OpenPayload(ctx, d, &c.Event, c.Payload)
	}
	if b.search != nil {
		return payloads, unfit
	}
	var over []*core.Task
	n := 0
	for i, t := range tasks {
		if tooLate(t, began) {
			over = append(over, t)
			continue
		}
		tasks[n], payloads[n], unfit[n] = t, payloads[i], unfit[i]
		n++
	}
	b.next = tasks[:n]
	l.reportBatch(b, over)
	return payloads[:n], unfit[:n]
}

func eventsOf(tasks []*core.Task) []outbox.Event {
	events := make([]outbox.Event, len(tasks))
	for i, t := range tasks {
		events[i] = taskOf(t).claimed.Event
	}
	return events
}

// callFit calls run with those of events that have no error in unfit, and returns what it makes of all of them.
func callFit(
	ctx context.Context, run func(context.Context, []outbox.Event, []any) error, all []outbox.Event, payloads []any,
	unfit []error,
) error {
	var failed outbox.BatchError
	n := 0
	events := make([]outbox.Event, 0, len(all))
	for i, e := range all {
		if unfit[i] != nil {
			failed.Fail(e, unfit[i])
			continue
		}
		events, payloads[n] = append(events, e), payloads[i]
		n++
	}
	if n == 0 {
		return failed.Err()
	}
	err := run(ctx, events, payloads[:n])
	if err == nil || failed.Err() == nil {
		return cmp.Or(err, failed.Err())
	}
	errs, each := eachError(err, events)
	if !each {
		return err
	}
	for i, e := range events {
		failed.Fail(e, errs[i])
	}
	return failed.Err()
}

// errorsOf returns the error of each of events, which a call with them has returned as err. each is false if err is the
// error of all. Its methods are user code: if they fail, it is.
func errorsOf(err error, events []outbox.Event) (errs []error, each bool) {
	if err == nil {
		return make([]error, len(events)), true
	}
	usercode.Each("error", 1, usercode.Limit, func(int) (func(), error) {
		found, is := eachError(err, events)
		return func() { errs, each = found, is }, nil
	})
	if !each {
		errs = make([]error, len(events))
		for i := range errs {
			errs[i] = err
		}
	}
	return errs, each
}

// answered takes in a call that has a result for each of its events.
func (l *loop) answered(b *batch, results []errclass.Result) {
	tasks, passed := b.next, true
	for i, t := range tasks {
		t.Result = results[i]
		passed = passed && results[i].Class == errclass.ClassDone
	}
	switch {
	case b.search == nil:
	case passed:
		b.search.Passed()
	default:
		b.search.Answered()
	}
	l.goOn(b, tasks)
}

// failed takes in a call that has failed as a whole, with r.
func (l *loop) failed(b *batch, r errclass.Result) {
	tasks := b.next
	away := !r.Class.Charged()
	ofEach := away || r.Class == errclass.ClassFailed && r.After != nil
	if ofEach || len(tasks) == 1 {
		for _, t := range tasks {
			t.Result = r
		}
		if b.search != nil {
			b.search.Answered()
		}
		if away {
			tasks = append(tasks[:len(tasks):len(tasks)], l.giveUp(b, r)...)
		}
		l.goOn(b, tasks)
		return
	}
	b.why = r
	if b.search == nil {
		b.search = halves.New(tasks)
	} else {
		b.search.Failed()
	}
	l.goOn(b, nil)
}

// giveUp ends the search of b because its target is unavailable, and returns what is left with r.
func (l *loop) giveUp(b *batch, r errclass.Result) (left []*core.Task) {
	if b.search == nil {
		return nil
	}
	left, b.search = b.search.Left(), nil
	for _, t := range left {
		t.Result = r
	}
	return left
}

// goOn reports what is over of b, and says what is called next.
func (l *loop) goOn(b *batch, over []*core.Task) {
	b.next = nil
	if b.search != nil {
		b.next = b.search.Next()
	}
	if b.search != nil && len(b.next) == 0 {
		over = append(over[:len(over):len(over)], b.unsearched()...)
	}
	l.reportBatch(b, over)
}

// endSearch ends the search of b before it has found everything.
func (l *loop) endSearch(b *batch) {
	b.next = nil
	l.reportBatch(b, b.unsearched())
}

// unsearched returns the tasks of b of which is not known whether they have made it fail.
func (b *batch) unsearched() []*core.Task {
	left := b.search.Left()
	for _, t := range left {
		t.Shared = true
		t.Result = errclass.New(errclass.ClassFailed, "a batch with it failed, and it was not tried alone: %s", b.why.Text)
	}
	return left
}

// reportBatch tells the loop of tasks of b for which nothing runs any more.
func (l *loop) reportBatch(b *batch, tasks []*core.Task) {
	if len(tasks) == 0 {
		return
	}
	h := happening{event: &core.BatchReported{Batch: b.run, Tasks: tasks}}
	if b.left -= len(tasks); b.left == 0 {
		b.cancel(nil)
		h.calls = 1
	}
	select {
	case l.events <- h:
	case <-l.over:
	}
}
