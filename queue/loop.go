package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/shutdown"
	"github.com/outboxgen/outboxgen/internal/machine/target"
	"github.com/outboxgen/outboxgen/internal/machine/testsignal"
	"github.com/outboxgen/outboxgen/internal/postgres/doorbell"
	"github.com/outboxgen/outboxgen/outbox"
)

// loop is one Run: a single goroutine that owns the events in flight, claims when there is room, and settles what
// workers report. Each pass is one round trip that finalises and claims together. Reports accumulate while it is under
// way, so batches are larger when the database is busier. A second pass starts when there is enough for it to do, so
// that a backlog keeps both PostgreSQL and the handlers busy.
type loop struct {
	*shutdown.Stages
	d      *Dispatcher
	ctx    context.Context // ends the claiming
	leases *leases
	*doorbell.Sleeper
	workers sync.WaitGroup

	queue      chan *task                    // claimed, not started; has room for everything in flight
	publish    map[*target.Target]chan *task // likewise, by destination
	inFlightBy map[*target.Target]int        // claimed and not reported, by destination
	routers    map[*target.Target]*router    // of the targets whose events say where they go
	over       chan struct{}                 // closed when nobody reads reports any more
	reports    chan *task                    // finished; likewise
	donePasses chan *pass                    // passes that are done; has room for all that may be under way
	capacity   int                           // how many may be in flight, not counting those of stalled publishers and one per resting target to try it
	inFlight   int                           // claimed and not known to be settled
	finished   []*task
	stopping   bool            // nothing is started any more
	endPause   <-chan struct{} // ends pauses

	lastAttempt        *task            // a reclaimed event on its last attempt, which is run alone if possible
	lastAttemptStarted bool             // it is queued or running
	lastAttemptSince   time.Time        // when it was claimed, then when it was queued
	lastAttemptTick    <-chan time.Time // when to check on it again

	passes      int  // passes under way
	sent        int  // passes so far
	reclaiming  bool // one of them may reclaim events
	settling    int  // events that they settle
	claiming    int  // events that they may claim
	reserved    int  // the room they need for those, in addition to what they settle in the same transaction
	dbRetry     backoff.Retrier
	pace        doorbell.Pace // of claims that find nothing
	settleErr   error         // why finished could not be settled
	reclaimFrom time.Time     // after an outage: the time when other processes have settled what they have in flight

	checkPauses   testsignal.Signal // makes watchPauses read what is paused
	pausesChanged testsignal.Signal // makes the loop take notice

	claimable  bool  // there may be something to claim
	generation int   // how often something has made it claimable
	returns    int64 // how many returns of targets the loop has seen
	backlog    bool  // the latest claim was full
	claims     *claims
	looks      looks
}

// signals let tests wait for what happens inside; nil channels cost nothing.
type signals struct {
	idle       testsignal.Signal // nothing is due, and the next enqueue wakes the dispatcher (or, without a doorbell, it polls)
	refused    testsignal.Signal // the doorbell refused to watch
	renewed    testsignal.Signal // leases were extended
	lost       testsignal.Signal // a lease was given up
	maintained testsignal.Signal // swept or pruned
	paused     testsignal.Signal // read what is paused
}

func newLoop(ctx context.Context, d *Dispatcher) *loop {
	room := max(d.cfg.BatchSize, d.cfg.Concurrency)
	l := &loop{
		Stages: shutdown.New(outbox.ContextWithRunner(ctx, d.runner())), d: d, ctx: ctx, leases: newLeases(d), claimable: true, endPause: ctx.Done(), capacity: room, claims: newClaims(d),
		looks: looks{wanted: true, walk: walk{in: d.lanes}},
		queue: make(chan *task, room+len(d.targets.All)), donePasses: make(chan *pass, maxPasses),
		publish: make(map[*target.Target]chan *task), routers: make(map[*target.Target]*router), over: make(chan struct{}), inFlightBy: make(map[*target.Target]int),
		checkPauses: make(testsignal.Signal, 1), pausesChanged: make(testsignal.Signal, 1),
	}
	for _, t := range d.targets.All {
		if t.Publisher != nil { // when it stalls it may hold all the capacity, and the events being claimed then
			l.publish[t] = make(chan *task, 2*room)
		}
		if t.ByEvent != nil {
			l.routers[t] = newRouter(l, t)
		}
	}
	l.reports = make(chan *task, cap(l.queue)+2*room*len(l.publish))
	var e *doorbell.Config
	if d.cfg.Wake == outbox.WakeDoorbell {
		e = &doorbell.Config{Bell: doorbell.Of(d.store.db, d.store.namespace), DB: d.store.db, Main: d.pool, Listen: d.cfg.ListenPool, Log: d.log, Listening: d.rep.Listening(d.cfg.ListenPool != nil)}
	}
	l.Sleeper = doorbell.NewSleeper(e, d.cfg.PollInterval, d.cfg.MaxPollInterval)
	return l
}

func (l *loop) run() error {
	defer l.Enforce(l.ctx, l.d.cfg.ShutdownTimeout, errShutdown)()
	helpers, stop := context.WithCancel(context.WithoutCancel(l.ctx))
	var owned sync.WaitGroup
	owned.Go(func() { l.leases.renew(helpers, l.DBCtx) })
	owned.Go(func() { l.d.maintain(l.ctx, l.leases.atRisk) })
	owned.Go(func() { l.Sleeper.Run(l.ctx, l.DBCtx) })
	owned.Go(func() { l.watchPauses(l.ctx) })
	owned.Go(func() { l.d.heart().Run(l.ctx) })
	for range l.d.cfg.Concurrency {
		l.workers.Go(l.worker)
	}
	for t, queue := range l.publish {
		send := func(tasks []*task) { l.d.publish(l.WorkCtx, l.leases, t, tasks, func(k *task) { l.reports <- k }) }
		if r := l.routers[t]; r != nil {
			send = r.route
		}
		l.workers.Go(func() { l.publisher(queue, send) })
	}
	defer close(l.over)
	l.deliver()
	err := l.stop()
	close(l.queue)
	for _, queue := range l.publish {
		close(queue)
	}
	if err == nil {
		l.workers.Wait()
	}
	stop()
	owned.Wait()
	return err
}

// worker runs queued tasks until the queue is closed. A handler that ends its goroutine ends the worker, and another
// worker replaces it.
func (l *loop) worker() {
	closed := false
	defer func() {
		if !closed {
			l.workers.Go(l.worker)
		}
	}()
	for t := range l.queue {
		l.d.runHandler(l.WorkCtx, l.leases, t, func(t *task) { l.reports <- t })
	}
	closed = true
}

// publisher sends queued tasks, as many per call as are queued, until the queue is closed.
func (l *loop) publisher(queue <-chan *task, send func([]*task)) {
	for first := range queue {
		tasks := []*task{first}
		for more := true; more && len(tasks) < target.BatchSize; {
			select {
			case k, ok := <-queue:
				if more = ok; ok {
					tasks = append(tasks, k)
				}
			default:
				more = false
			}
		}
		send(tasks)
	}
}

// start queues t for the workers or the publisher of its topic.
func (l *loop) start(t *task) {
	if to := l.d.target(t.Topic); to.Publisher != nil {
		l.publish[to] <- t
	} else {
		l.queue <- t
	}
}

// deliver claims and settles until ctx ends.
func (l *loop) deliver() {
	defer l.Sleeper.Stop()
	for l.ctx.Err() == nil {
		l.collect()
		l.startLastAttempt()
		want := l.room()
		if !l.worthwhile(want) && (l.passes == maxPasses || l.tryable() == nil) {
			l.wait()
			continue
		}
		l.send(want)
	}
}

// requestClaim makes the loop claim once more, whatever the current claims find.
func (l *loop) requestClaim() {
	l.claimable = true
	l.generation++
}

// requestLook makes the loop claim once more, and look from the head soon.
func (l *loop) requestLook() {
	l.looks.soon()
	l.requestClaim()
}

// startLastAttempt queues the pending event on its last attempt once nothing else is in flight. This event may have
// killed its process before. If it does so again, every other event in flight loses an attempt. The wait for long
// handlers is bounded: by lastAttemptLimit if they would lose one attempt of several, and by a lease if one of them
// would become a dead letter.
func (l *loop) startLastAttempt() {
	if l.lastAttempt == nil || l.lastAttemptStarted {
		return
	}
	limit, lease, waited := l.d.lastAttemptLimit, l.d.cfg.LeaseDuration, time.Since(l.lastAttemptSince)
	alone := l.inFlight == 1 && l.claiming == 0
	switch {
	case alone, waited >= lease, waited >= limit && !l.leases.hasLastAttempt(l.lastAttempt):
		l.lastAttemptStarted = true
		l.watchLastAttempt(limit)
		l.start(l.lastAttempt)
	case waited >= limit && l.lastAttemptTick == nil:
		l.lastAttemptTick = time.After(lease - waited)
	}
}

// watchLastAttempt makes the loop check that event again after d.
func (l *loop) watchLastAttempt(d time.Duration) {
	l.lastAttemptSince, l.lastAttemptTick = time.Now(), time.After(d)
}

// claimsPaused reports whether an event on its last attempt stops other claims. It does so for lastAttemptLimit while
// it waits for the others to finish, and again after its start, because an event that kills its process usually does so
// soon.
func (l *loop) claimsPaused() bool {
	return l.lastAttempt != nil && time.Since(l.lastAttemptSince) < l.d.lastAttemptLimit
}

// collect handles all reports, finished passes and changes of what is paused that are ready.
func (l *loop) collect() {
	for {
		select {
		case t := <-l.reports:
			l.onReport(t)
		case p := <-l.donePasses:
			l.onPassDone(p)
		case <-l.pausesChanged:
			l.onPauses()
		default:
			return
		}
	}
}

// onReport handles the report of a worker, or an event that is released unstarted.
func (l *loop) onReport(t *task) {
	if to := l.d.target(t.Topic); to.Publisher != nil {
		l.inFlightBy[to]--
	}
	if t.try != nil {
		t.try.OnTry(true)
	}
	if n := l.d.targets.Returns.Load(); n != l.returns {
		l.returns = n
		l.requestClaim() // earlier claims have left out the events that wait for that target
	}
	if l.leases.finish(t) {
		l.finished = append(l.finished, t)
	} else {
		l.inFlight--
	}
	if t == l.lastAttempt {
		l.lastAttempt, l.lastAttemptStarted, l.lastAttemptTick = nil, false, nil
	}
}

// wait sleeps until there is something to do.
func (l *loop) wait() {
	var try, look <-chan time.Time
	if now := time.Now(); l.passes < maxPasses {
		if at := l.d.targets.Next(now); !at.IsZero() {
			timer := time.NewTimer(at.Sub(now))
			defer timer.Stop()
			try = timer.C
		}
		if l.looks.wanted && l.looks.from.After(now) {
			timer := time.NewTimer(l.looks.from.Sub(now))
			defer timer.Stop()
			look = timer.C
		}
	}
	select {
	case <-l.ctx.Done():
	case <-try:
	case <-look:
	case t := <-l.reports:
		l.onReport(t)
	case p := <-l.donePasses:
		l.onPassDone(p)
	case <-l.leases.lapsed:
		l.withdraw(l.leases.isLost)
	case <-l.pausesChanged:
		l.onPauses()
	case <-l.lastAttemptTick:
		l.lastAttemptTick = nil
	case <-l.Rang():
		if l.d.pauses.Load().any() {
			l.checkPauses.Emit() // a resume rings
		}
		l.requestClaim()
		l.OnRing()
	case a := <-l.Answers():
		l.onWake(a)
	case <-l.Polls():
		if !l.looks.running { // a look that is slower than its pause is not followed by another without a pause
			l.requestLook()
		}
		l.OnPoll(l.pace.Pause())
	}
}

// onWake handles an answer of the doorbell: the loop claims once more, immediately or after a pause.
func (l *loop) onWake(a doorbell.Answer) {
	look, pause := l.OnAnswer(a)
	switch {
	case look && pause == 0: // what was committed before this answer rang nobody
		l.requestLook()
	case look:
		l.requestClaim()
	}
	if pause > 0 {
		l.d.signals.refused.Emit()
		l.pause(max(pause, l.pace.Pause()))
	}
}

// pause waits for d, or until endPause, and handles reports and passes meanwhile.
func (l *loop) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-l.endPause:
			return
		case <-timer.C:
			return
		case t := <-l.reports:
			l.onReport(t)
		case p := <-l.donePasses:
			l.onPassDone(p)
		case <-l.leases.lapsed:
			l.withdraw(l.leases.isLost)
		}
	}
}

// withdraw takes queued events back before they start: those that are gone, for example because their lease was lost while
// they waited for a worker. Each is released under its fence, so its attempt is not counted unless another worker has claimed it
// since.
func (l *loop) withdraw(gone func(*task) bool) {
	if l.lastAttempt != nil && !l.lastAttemptStarted && gone(l.lastAttempt) {
		l.handBack(l.lastAttempt)
		l.lastAttempt = nil
	}
	l.withdrawRouted(gone)
	for _, queue := range append(slices.Collect(maps.Values(l.publish)), l.queue) {
		for range len(queue) {
			select {
			case t := <-queue:
				if gone(t) {
					l.handBack(t)
				} else {
					queue <- t // has room: nobody else sends
				}
			default: // a worker took it first
			}
		}
	}
}

// withdrawRouted does the same for events that wait for a call to their own destination.
func (l *loop) withdrawRouted(gone func(*task) bool) {
	for _, r := range l.routers {
		for _, t := range r.withdraw(gone) {
			l.handBack(t)
		}
	}
}

// handBack makes the next pass release t, which was not started.
func (l *loop) handBack(t *task) {
	t.unstarted, t.result = true, notStarted
	l.onReport(t)
}

// stop releases what was not started, waits for the handlers that run, and settles their events.
func (l *loop) stop() error {
	l.stopping = true
	l.endPause = l.DBCtx.Done()
	l.withdraw(func(*task) bool { return true })
	abandon := l.GiveUp
	for {
		l.collect()
		switch {
		case len(l.finished) > 0 && l.DBCtx.Err() == nil && l.passes < maxPasses:
			l.send(0)
		case l.passes > 0:
		case len(l.finished) > 0: // dbCtx is over
			return fmt.Errorf("stop dispatcher: %d events could not be settled: %w", len(l.finished), l.settleErr)
		case l.inFlight == 0:
			return nil
		case l.GivenUp():
			return fmt.Errorf("stop dispatcher: still running after %s: %s", l.d.cfg.ShutdownTimeout, l.leases.names())
		}
		select {
		case t := <-l.reports:
			l.onReport(t)
		case p := <-l.donePasses:
			l.onPassDone(p)
		case <-abandon:
			abandon = nil
		}
	}
}

// names lists the events whose handlers are running.
func (l *leases) names() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for t := range l.tasks {
		if t.finished {
			continue
		}
		names = append(names, t.Namespace+"/"+t.Topic+" "+t.ID.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
