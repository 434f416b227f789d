package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/machine/doorbell"
	"github.com/outboxgen/outboxgen/internal/machine/report"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/postgres/bell"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// loop is the shell of one Run or Drain: it owns goroutines, channels and the clock, tells the core what has happened,
// and does what the core says.
type loop struct {
	*shutdown.Stages
	d    *Dispatcher
	ctx  context.Context // ends the claiming
	core *core.Core
	bell *doorbell.Doorbell // nil without one
	loan *doorbell.Loan     // for the first claim that follows from what the doorbell has said; nil if there is none

	queue   chan work      // for the workers
	reports chan *task     // of the workers
	events  chan happening // of everybody else
	asks    chan func()    // questions to the core
	over    chan struct{}  // closed when nobody reads these any more
	timer   *time.Timer    // of core.Timer
	// statement records the results of passes; nil in a drain, which returns their errors.
	statement func(what string, began time.Time, err error)
	calls     chan func() // calls of user code in the goroutine of the caller; nil if they have goroutines of their own

	workers sync.WaitGroup // and calls of publishers
	others  sync.WaitGroup // what uses the database
	started int            // workers
	given   int            // calls that they have
	steps   int            // so far
	stopped bool           // the core knows that ctx has ended
	reported
	total Report
	end   *core.End
}

// reported is the memory of an event that comes often.
type reported struct{ event core.Reported }

// happening is an event for the core, and what it adds to the report of a drain.
type happening struct {
	event core.Event
	adds  Report
	calls int // of handlers that are over with it, and that reports does not tell of
}

// signals let tests wait for what happens inside; nil channels cost nothing.
type signals struct {
	// nothing is due, and the next enqueue wakes the dispatcher (or, without a doorbell, it polls)
	idle       testsignal.Signal
	refused    testsignal.Signal // the doorbell refused to watch
	renewed    testsignal.Signal // leases were extended
	lost       testsignal.Signal // a lease was given up
	maintained testsignal.Signal // swept or pruned
	paused     testsignal.Signal // read what is paused
}

// waitPauses is how many of the longest pauses of a target an event waits that needs something which is not there. That
// is 30 s by default: each such event waits by itself, and there may be many.
const waitPauses = 20

// machineOf returns what every core of d has in common.
func (d *Dispatcher) machineOf() core.Config {
	cfg := core.Config{
		BatchSize: d.cfg.BatchSize, Concurrency: d.cfg.Concurrency,
		Ahead:         d.cfg.Concurrency,
		LeaseDuration: d.cfg.LeaseDuration, PollInterval: d.cfg.PollInterval, MaxPollInterval: d.cfg.MaxPollInterval,
		Alone:      d.cfg.Topics != nil || d.cfg.TenantIDs != nil,
		FirstPause: d.cfg.Breaker.FirstPause, WaitPause: waitPauses * d.cfg.Breaker.MaxPause,
	}
	d.targetOf = make(map[*core.Target]*target.Target, len(d.targets.All))
	of := make(map[*target.Target]*core.Target, len(d.targets.All))
	for _, t := range d.targets.All {
		of[t] = &core.Target{Rest: t.Rest, ByEvent: t.ByEvent}
		d.targetOf[of[t]] = t
		cfg.Targets = append(cfg.Targets, of[t])
	}
	for _, topic := range d.topics {
		h, to := d.handlers[topic], of[d.targets.ByTopic[d.store.namespace+"/"+topic]]
		to.Batch = h.batch
		cfg.Topics = append(cfg.Topics, core.Topic{
			Name: topic, Target: to, Turns: h.fairness != "" || len(h.limits) > 0, Limits: len(h.limits) > 0,
			Apart: h.shape(topic).Apart(),
		})
	}
	return cfg
}

func newLoop(ctx context.Context, d *Dispatcher, cfg core.Config) *loop {
	cfg.Pauses, cfg.LastAttemptLimit = d.pauses.Load(), d.lastAttemptLimit
	return &loop{
		Stages: shutdown.New(outbox.ContextWithRunner(ctx, d.runner())), d: d, ctx: ctx, core: core.New(time.Now(), cfg),
		queue: make(chan work, cfg.Concurrency+cfg.Ahead), reports: make(chan *task, cfg.Concurrency),
		events: make(chan happening, 2*core.MaxPasses), asks: make(chan func()), over: make(chan struct{}),
		timer: time.NewTimer(time.Hour),
	}
}

// run runs a dispatcher until ctx ends.
func (d *Dispatcher) run(ctx context.Context) error {
	cfg := d.machine
	cfg.Doorbell = d.cfg.Wake == outbox.WakeDoorbell
	l := newLoop(ctx, d, cfg)
	l.statement = d.rep.Statement
	defer l.Enforce(ctx, d.cfg.ShutdownTimeout, errShutdown)()
	if cfg.Doorbell {
		l.bell = doorbell.New(&doorbell.Config{
			Bell: bell.Of(d.store.db, d.store.namespace), DB: d.store.db, Main: d.pool, Listen: d.cfg.ListenPool, Log: d.log,
			Listening: d.rep.Listening(d.cfg.ListenPool != nil),
		})
		l.others.Go(func() { l.bell.Run(ctx, l.DBCtx) })
	}
	l.others.Go(func() { d.maintain(ctx, l.atRisk) })
	if len(d.limited) > 0 {
		l.others.Go(func() { d.keepLimits(ctx, l.atRisk) })
	}
	heart := d.heart()
	heart.Resting, heart.Listed = l.reasons, func() {
		l.post(core.Listed{}, Report{})
		d.overtaken(ctx)
	}
	l.others.Go(func() { heart.Run(ctx) })
	switch end := l.loop(); {
	case end.Unsettled > 0:
		return fmt.Errorf("stop dispatcher: %d events could not be settled: %w", end.Unsettled, end.Err)
	case len(end.Running) > 0:
		return fmt.Errorf("stop dispatcher: still running after %s: %s", d.cfg.ShutdownTimeout, namesOf(end.Running))
	}
	return nil
}

// namesOf lists the events of tasks.
func namesOf(tasks []*core.Task) string {
	var names []string
	for _, t := range tasks {
		e := &taskOf(t).claimed.Event
		names = append(names, e.Namespace+"/"+e.Topic+" "+e.ID.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// loop tells the core what happens until it ends, and then waits for what still runs.
func (l *loop) loop() *core.End {
	defer l.timer.Stop()
	var rang <-chan doorbell.Ring
	var answers <-chan doorbell.Answer
	if l.bell != nil {
		rang, answers = l.bell.Rang(), l.bell.Answers()
	}
	stop, giveUp, databaseOver := l.ctx.Done(), l.GiveUp, l.DBCtx.Done()
	for l.step(core.Started{}); l.end == nil; {
		select {
		case t := <-l.reports:
			l.step(l.collect(t))
		case h := <-l.events:
			l.total.Add(h.adds)
			l.given -= h.calls
			l.step(h.event)
		case <-l.timer.C:
			l.step(core.Tick{})
		case r := <-rang:
			l.heard(r.Loan(), core.Woken{Watched: r.Watched(), Left: r.Left()})
		case a := <-answers:
			l.heard(a.Loan(), core.Answered{Request: a.Request(), Bell: a.State()})
		case ask := <-l.asks:
			ask()
		case <-stop:
			stop = nil
			l.step(core.Tick{})
		case <-giveUp:
			giveUp = nil
			l.step(core.GiveUp{})
		case <-databaseOver:
			databaseOver = nil
			l.step(core.DatabaseOver{})
		}
	}
	close(l.over)
	close(l.queue)
	if len(l.end.Running) == 0 {
		l.workers.Wait()
	}
	l.others.Wait()
	return l.end
}

// collect returns the event of all reports that there are, of which t is the first.
func (l *loop) collect(t *task) core.Event {
	tasks := append(l.event.Tasks[:0], &t.Task)
	for n := len(l.reports); n > 0; n-- {
		tasks = append(tasks, &(<-l.reports).Task)
	}
	l.event.Tasks = tasks
	l.given -= len(tasks)
	return &l.event
}

// step tells the core of e. It tells first that the context has ended, so that nothing more is started.
func (l *loop) step(e core.Event) {
	if !l.stopped && l.ctx.Err() != nil {
		l.stopped = true
		l.tell(core.Stop{})
	}
	l.tell(e)
}

// heard tells the core of e, which the doorbell has said. If a claim follows, it is made on the connection that loan
// lends.
func (l *loop) heard(loan *doorbell.Loan, e core.Event) {
	l.loan = loan
	l.step(e)
	l.loan.Return()
	l.loan = nil
}

// tell tells the core of e and does what it says.
func (l *loop) tell(e core.Event) {
	l.steps++
	var recalled *core.Recalled
	for _, c := range l.core.Step(time.Now(), e) {
		if _, is := c.(core.Recall); is {
			recalled = l.recall()
			continue
		}
		l.obey(c)
	}
	if recalled != nil {
		l.tell(recalled)
	}
}

// recall takes back what waits for a worker.
func (l *loop) recall() *core.Recalled {
	e := &core.Recalled{}
	for range len(l.queue) {
		select {
		case w := <-l.queue:
			l.given--
			if w.batch != nil {
				w.batch.recalled()
				e.Batches = append(e.Batches, w.batch.run)
				continue
			}
			w.task.cancel(nil)
			w.task.cancel = nil
			e.Tasks = append(e.Tasks, &w.task.Task)
		default: // a worker has begun it
		}
	}
	return e
}

// obey does what the core says. Nothing here waits, except for a log or an observer that is slow.
func (l *loop) obey(c core.Command) {
	switch c := c.(type) {
	case core.Run:
		l.start(taskOf(c.Task))
	case *core.RunBatch:
		l.startBatch(c)
	case *core.Send:
		l.call(func() {
			sent, failed := l.send(c)
			l.report(failed)
			l.post(sent, Report{})
		})
	case *core.Route:
		l.call(func() {
			routed, failed := l.route(c)
			l.report(failed)
			l.post(routed, Report{})
		})
	case *core.Pass:
		var loan *doorbell.Loan
		if c.Claim != nil {
			loan, l.loan = l.loan, nil
		}
		l.others.Go(func() { l.pass(c, loan) })
	case *core.Renew:
		l.others.Go(func() { l.post(l.renew(c), Report{}) })
	case core.Lost:
		l.lose(taskOf(c.Task))
	case core.Drop:
		l.drop(taskOf(c.Task))
	case core.ReadPauses:
		l.others.Go(func() {
			p, err := l.d.readPauses(l.ctx)
			l.post(&core.PausesRead{Pauses: p, Err: err}, Report{})
		})
	case core.Sweep:
		l.others.Go(func() {
			n, _, err := l.d.store.sweep(l.ctx, l.d.scope(), 0, l.d.onSwept)
			l.post(core.Swept{Err: err}, Report{Dead: n})
		})
	case core.AskBell:
		l.bell.Request(c.Asleep)
	case core.TellRests:
		l.d.targets.Tell(c.Notes)
	case core.Timer:
		l.wakeAt(c.At)
	case core.Signal:
		l.signal(c)
	case *core.End:
		l.end = c
	}
}

// post tells the loop of e. After the end nobody is interested.
func (l *loop) post(e core.Event, adds Report) {
	select {
	case l.events <- happening{event: e, adds: adds}:
	case <-l.over:
	}
}

// report tells the loop of tasks for which nothing runs any more.
func (l *loop) report(tasks []*core.Task) {
	if len(tasks) > 0 {
		l.post(&core.Reported{Tasks: tasks}, Report{})
	}
}

// wakeAt sets the timer.
func (l *loop) wakeAt(at time.Time) {
	if at.IsZero() {
		l.timer.Stop()
	} else {
		l.timer.Reset(time.Until(at))
	}
}

func (l *loop) signal(s core.Signal) {
	to := [...]testsignal.Signal{
		core.SignalIdle: l.d.signals.idle, core.SignalRefused: l.d.signals.refused,
		core.SignalRenewed: l.d.signals.renewed, core.SignalPaused: l.d.signals.paused,
	}
	to[s].Emit()
}

// start gives t to a worker.
func (l *loop) start(t *task) {
	t.ctx, t.cancel = context.WithCancelCause(l.WorkCtx)
	l.give(work{task: t})
}

// give gives w to a worker, which is started if all others have something to do.
func (l *loop) give(w work) {
	if l.given++; l.calls != nil {
		l.call(func() { l.do(w) })
		return
	}
	if l.given > l.started && l.started < l.d.cfg.Concurrency {
		l.started++
		l.workers.Go(func() { l.worker(work{}) })
	}
	l.queue <- w // has room for all that the core gives
}

// call calls user code in a goroutine of its own, or in that of the caller.
func (l *loop) call(f func()) {
	if l.calls == nil {
		l.workers.Go(f)
		return
	}
	l.workers.Go(func() {
		select {
		case l.calls <- f:
		case <-l.over:
		}
	})
}

// worker does what is left of w, and then what is queued until the queue is closed. A handler that ends its goroutine
// ends the worker, and another worker replaces it.
func (l *loop) worker(w work) {
	closed := false
	defer func() {
		if !closed {
			l.workers.Go(func() { l.worker(work{batch: w.batch}) })
		}
	}()
	if w.batch != nil {
		l.handleBatch(w.batch)
	}
	for w = range l.queue {
		l.do(w)
	}
	closed = true
}

// do calls the handler of w.
func (l *loop) do(w work) {
	if w.batch != nil {
		l.handleBatch(w.batch)
	} else {
		l.handle(w.task)
	}
}

// handle runs the handler of t.
func (l *loop) handle(t *task) {
	over := func(t *task) {
		select {
		case l.reports <- t:
		case <-l.over:
		}
	}
	if l.ended(&t.Task) {
		t.cancel(nil)
		over(t)
		return
	}
	l.d.runHandler(t, over)
}

// ended takes note that the run had ended before t could begin. The loop may not have noticed the end yet; and after it
// no user code runs any more in the goroutine of a caller that leaves.
func (l *loop) ended(t *core.Task) bool {
	t.Ended = l.ctx.Err() != nil
	return t.Ended
}

// pass makes the round trip p, on the connection that loan lends if it lends one.
func (l *loop) pass(p *core.Pass, loan *doorbell.Loan) {
	defer loan.Return()
	x := &roundTrip{settlements: settlementsOfPass(p), loan: loan}
	if p.Claim != nil {
		x.claim = l.d.scope()
		x.claim.Claim = *p.Claim
	}
	began := time.Now()
	err := l.d.roundTrip(l.DBCtx, x)
	done := &core.PassDone{Pass: p, Open: openOf(p, x), Claimed: tasksOf(x.claimed), Found: x.found, Err: err}
	adds := l.d.account(x, p.HandedBack)
	if l.statement != nil {
		l.statement("claim and settle", began, err)
	}
	l.post(done, adds)
}

// renew makes the renewal r.
func (l *loop) renew(r *core.Renew) *core.Renewed {
	x := &roundTrip{lease: l.d.cfg.LeaseDuration, settlements: make([]settlement, len(r.Tasks))}
	for i, t := range r.Tasks {
		x.settlements[i] = settlement{kind: extending, claimed: taskOf(t).claimed}
	}
	ctx, cancel := context.WithDeadline(l.DBCtx, r.Until)
	defer cancel()
	began := time.Now()
	err := l.d.store.roundTripByParts(ctx, x)
	if l.DBCtx.Err() == nil {
		l.d.rep.Statement("renew leases", began, err)
	}
	done := &core.Renewed{Renew: r}
	if err != nil {
		return done
	}
	for i := range x.settlements {
		f := &x.settlements[i]
		became := core.Prolonged
		switch f.outcome {
		case Lost:
			became = core.Gone
		case refused:
			became = core.Kept
			l.d.logRefusal(f)
		case Locked:
			became = core.Kept
			l.d.rep.Trouble(report.Locked, "renew lease: another transaction has the event locked", f.claimed.Event,
				"another transaction has the event locked")
		}
		done.Outcomes = append(done.Outcomes, became)
	}
	return done
}

// lose cancels the handler of t, if it runs.
func (l *loop) lose(t *task) {
	if t.cancel != nil {
		t.cancel(outbox.ErrLeaseLost)
	}
	l.d.rep.Trouble(report.Lapsed, "lease lost", t.claimed.Event, outbox.ErrLeaseLost.Error())
	l.d.signals.lost.Emit()
}

// drop tells that t has failed after its lease was lost.
func (l *loop) drop(t *task) {
	e := t.claimed.Event
	l.total.Lost++
	l.d.rep.Trouble(report.Lost, "event lost", e, t.Result.Text)
	l.d.rep.Add(Report{Lost: 1})
	if l.d.hooks.WantsEnds() {
		l.d.hooks.Ended([]report.End{{Event: e}})
	}
}

// ask calls f while the core does nothing else, unless the loop is over.
func (l *loop) ask(f func()) {
	done := make(chan struct{})
	select {
	case l.asks <- func() { f(); close(done) }:
		<-done
	case <-l.over:
	}
}

// atRisk returns the events in flight whose lease may have run out.
func (l *loop) atRisk() (ids []uuid.UUID) {
	l.ask(func() { ids = l.core.AtRisk(time.Now()) })
	return ids
}

// reasons returns why each of the targets that are unavailable rests.
func (l *loop) reasons() (all map[string]string) {
	l.ask(func() { all = core.Reasons(l.d.machine.Targets) })
	return all
}
