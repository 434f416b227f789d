package queue

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/machine/target"
)

// maxPasses is how many passes may be under way: one that PostgreSQL works on, and one that waits for its commit.
const maxPasses = 2

// worthwhile reports whether a pass that claims up to want should start. If no pass is under way, any work is enough;
// otherwise there must be half a batch, so that batches stay large.
func (l *loop) worthwhile(want int) bool {
	switch todo := max(len(l.finished), want); l.passes {
	case 0:
		return todo > 0
	case maxPasses:
		return false
	default:
		return todo >= l.half()
	}
}

func (l *loop) half() int { return (l.capacity + 1) / 2 }

// room returns how many events to claim now. What the same round trip settles counts as free. It is zero if nothing is
// claimable or claims are paused, and also if there is little room while enough events wait for the workers. Two passes
// claim at the same time only from a backlog, each up to half of the capacity.
func (l *loop) room() int {
	inFlight := l.inFlight - l.stalled()
	busy := inFlight - len(l.finished) - l.settling
	free := l.capacity - (inFlight - len(l.finished)) - l.reserved
	if !l.claimable && !l.looks.due(time.Now()) || l.claimsPaused() || free <= 0 || l.claiming > 0 && !l.backlog {
		return 0
	}
	if busy+l.claiming > l.d.cfg.Concurrency && free < l.capacity/4 {
		return 0
	}
	if l.backlog {
		free = min(free, l.half())
	}
	return min(free, l.d.cfg.BatchSize)
}

// stalled counts the events in flight at publishers whose calls take long. They take no room from the others, and no
// more events are claimed for them.
func (l *loop) stalled() (n int) {
	now := time.Now()
	for t, inFlight := range l.inFlightBy {
		if is, _ := t.Stalled(now); is {
			n += inFlight
		}
	}
	for _, r := range l.routers {
		n += r.stalled(now)
	}
	return n
}

// pass is one round trip: settle what is finished, claim up to want.
type pass struct {
	x          *roundTrip
	finished   []*task
	want       int
	look       bool           // the claim looks from the head
	try        *target.Target // the claim is of one event, to find out whether this target is available again
	generation int            // when it started
	began      time.Time
	tries      int // of dbRetry, when it started
	err        error
}

func (p *pass) reserved() int { return max(0, p.want-len(p.finished)) }

// reclaims reports whether p may claim events whose lease has run out.
func (p *pass) reclaims() bool { return p.x.claim != nil && p.x.claim.reclaims > 0 }

// send starts a pass that settles all finished tasks.
func (l *loop) send(want int) {
	l.sent++
	now := time.Now()
	p := &pass{x: l.d.settlement(l.finished), finished: l.finished, want: want, generation: l.generation, began: now, tries: l.dbRetry.Tries()}
	l.finished = nil
	if p.try = l.tryable(); p.try != nil {
		p.x.claim, p.want = l.claims.try(p.try, l.mayReclaim(now)), 1
	} else if want > 0 {
		if p.look = l.looks.due(now); p.look {
			if p.x.claim = l.claims.request(want, l.mayReclaim(now), l.looks.next(&l.claims.ahead)); p.x.claim == nil {
				l.looks.from = now.Add(lookEvery) // everything rests or is paused
			}
		} else {
			p.x.claim = l.claims.request(want, false, l.claims.next)
		}
		p.look = p.look && p.x.claim != nil
	}
	if p.reclaims() {
		p.x.claim.inFlight = l.leases.atRisk()
	}
	l.passes++
	l.settling += len(p.finished)
	l.claiming += p.want
	l.reserved += p.reserved()
	l.reclaiming = l.reclaiming || p.reclaims()
	l.looks.running = l.looks.running || p.look
	go func() {
		p.err = l.d.roundTrip(l.DBCtx, p.x)
		l.donePasses <- p
	}()
}

// tryable returns a resting target for which one event should be tried now. It returns nil while claims are paused or
// the loop stops.
func (l *loop) tryable() *target.Target {
	if l.stopping || l.claimsPaused() {
		return nil
	}
	return l.d.tryable()
}

// mayReclaim reports whether events whose lease has run out may be taken. They may not while an event on its last attempt
// is in flight, because one of them might kill the process. They may not right after an outage of the database either,
// because live processes have yet to settle what they have in flight.
func (l *loop) mayReclaim(now time.Time) bool {
	return !l.reclaiming && l.lastAttempt == nil && !now.Before(l.reclaimFrom)
}

// onPassDone handles a finished pass. After an error, the tasks that it should have settled are finished tasks again,
// except those known to be settled. Claimed events are handled even then, if the claim was committed.
func (l *loop) onPassDone(p *pass) {
	l.passes--
	l.settling -= len(p.finished)
	l.claiming -= p.want
	l.reserved -= p.reserved()
	if p.reclaims() {
		l.reclaiming = false
	}
	if p.look {
		l.looks.running = false
	}
	if p.try != nil && len(p.x.claimed) == 0 {
		p.try.OnTry(false)
	}
	settled, open := p.x.divide(p.finished)
	l.finished = append(l.finished, open...)
	l.inFlight -= len(settled)
	l.leases.settled(settled)
	l.d.account(p.x)
	if len(p.x.releases) > 0 {
		l.looks.soon() // the walk ahead may have passed them
	}
	if p.want > 0 && (p.err == nil || len(p.x.claimed) > 0) {
		if len(p.x.claimed) == 0 && len(p.finished) == 0 {
			l.pace.Took(time.Since(p.began))
			pause := l.pace.Pause()
			l.Rest(pause)
			l.looks.rest(time.Now().Add(pause)) // a look that is due is a claim, too
		}
		l.onClaim(p)
	}
	l.d.rep.Statement("claim and settle", p.began, p.err)
	if p.err == nil {
		if l.dbRetry.Tries() > 0 {
			l.reclaimFrom = time.Now().Add(reclaimPause)
		}
		l.dbRetry.Reset()
		return
	}
	if len(open) > 0 {
		l.settleErr = p.err
	}
	if p.want > 0 { // a concurrent claim may have passed over rows because this one had them locked
		l.backlog = false
		l.claims.ahead.failed()
		l.looks.walk.failed()
		l.requestLook()
	}
	if p.tries == l.dbRetry.Tries() { // otherwise another pass has paused for this outage
		l.pause(l.dbRetry.Next())
	}
}

// reclaimPause is the time after an outage of the database within which every live process has had a pass.
const reclaimPause = backoff.LongestPause + backoff.LongestPause/2

// onClaim queues what was claimed, and decides whether to claim again.
func (l *loop) onClaim(p *pass) {
	claimed := p.x.claimed
	tasks, paused := make([]task, len(claimed)), l.d.pauses.Load()
	for i := range claimed {
		t := &tasks[i]
		t.Claimed, t.try = claimed[i], p.try
		l.leases.add(t)
		l.inFlight++
		if to := l.d.target(t.Topic); to.Publisher != nil {
			l.inFlightBy[to]++
		}
		switch {
		case l.stopping || paused.event(&t.Event):
			l.handBack(t)
		case t.Reclaimed && t.Attempt >= t.MaxAttempts:
			l.lastAttempt = t
			l.watchLastAttempt(l.d.lastAttemptLimit)
		default:
			l.start(t)
		}
	}
	if p.x.claim == nil { // every target is away
		l.claimable = l.claimable && p.generation != l.generation
	} else if l.onWalk(p); p.try != nil { // the claim was not of the other targets
		return
	} else {
		l.backlog = len(claimed) == p.want
		switch {
		case len(claimed) > 0: // a short batch does not mean that nothing is left: an event may have been enqueued since
			l.claimable = true
			l.looks.soon() // others may be committed behind them
			l.Found()
		case l.claims.ahead.more() || !p.look && l.claims.ahead.partial:
			l.claimable = l.claimable || !p.look
		case p.generation == l.generation: // otherwise something has made it claimable since the pass started
			l.claimable = false
		}
	}
	switch {
	case len(claimed) > 0:
		l.Busy()
	case l.claimable || l.claiming > 0 || !l.Idle():
	case !l.looks.wanted:
		l.d.signals.idle.Emit()
	}
}

// onWalk moves the walk of p's claim to where the claim has ended.
func (l *loop) onWalk(p *pass) {
	if p.err != nil && p.x.claimedAt.IsZero() {
		return
	}
	if p.try != nil {
		l.claims.tried(p.try, p.x)
		return
	}
	if !p.look {
		l.claims.ahead.advance(p.x)
		return
	}
	l.looks.onClaim(p.x, &l.claims.ahead, time.Now())
}
