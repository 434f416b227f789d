package queue

import (
	"time"

	"github.com/outboxgen/outboxgen/internal/backoff"
	"github.com/outboxgen/outboxgen/internal/relay"
)

// maxPasses is how many passes may be under way: one that PostgreSQL works on, and one that waits for its commit.
const maxPasses = 2

// worthwhile tells whether a pass should start that claims up to want: any when none is under way, else one with
// half a batch to do, so that batches stay large.
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

// room returns how many events to claim now, counting as free what the same round trip settles: none
// when nothing is claimable, none while claims are paused, and not a few at a time while enough wait for the workers.
// Two passes claim at the same time only from a backlog, half of the room each.
func (l *loop) room() int {
	inFlight := l.inFlight - l.stalled()
	busy := inFlight - len(l.finished) - l.settling
	free := l.capacity - (inFlight - len(l.finished)) - l.reserved
	if !l.claimable || l.claimsPaused() || free <= 0 || l.claiming > 0 && !l.backlog {
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

// stalled counts the events in flight at publishers whose calls take long: they take no room from the others, and no more of
// theirs are claimed.
func (l *loop) stalled() (n int) {
	now := time.Now()
	for t, inFlight := range l.inFlightBy {
		if is, _ := t.Stalled(now); is {
			n += inFlight
		}
	}
	return n
}

// pass is one round trip: settle what is finished, claim up to want.
type pass struct {
	x          *roundTrip
	finished   []*task
	want       int
	reclaims   bool
	try        *relay.Target // the claim is of one event, to find out whether this target is back
	generation int           // when it started
	began      time.Time
	tries      int // of dbRetry, when it started
	err        error
}

// continues tells whether p claims on from where the latest claims have ended, in a backlog. What has come behind that
// place, because its transaction was longer, is found by the next pass that reclaims.
func (p *pass) continues() bool { return p.x.claim != nil && p.x.claim.after != place{} }

func (p *pass) reserved() int { return max(0, p.want-len(p.finished)) }

// send starts a pass with all that is finished.
func (l *loop) send(want int) {
	p := &pass{x: l.d.settlement(l.finished), finished: l.finished, want: want, generation: l.generation, began: time.Now(), tries: l.dbRetry.Tries()}
	l.finished = nil
	if p.try = l.tryable(); p.try != nil {
		p.reclaims = l.mayReclaim(time.Now())
		p.x.claim, p.want = l.d.requestTry(p.try, p.reclaims), 1
		p.x.claim.inFlight = l.leases.atRisk()
	} else if want > 0 {
		p.reclaims = l.reclaimDue(time.Now())
		p.x.claim = l.d.request(want, p.reclaims)
		switch {
		case p.x.claim == nil:
		case p.reclaims:
			p.x.claim.inFlight = l.leases.atRisk()
		case l.backlog:
			p.x.claim.after = l.claimAfter
		}
	}
	l.passes++
	l.settling += len(p.finished)
	l.claiming += p.want
	l.reserved += p.reserved()
	l.reclaiming = l.reclaiming || p.reclaims
	go func() {
		p.err = l.d.roundTrip(l.DBCtx, p.x)
		l.donePasses <- p
	}()
}

// tryable returns a target that rests and of which one event should be tried now. None is tried while claims are paused, and none
// when the loop stops.
func (l *loop) tryable() *relay.Target {
	if l.stopping || l.claimsPaused() {
		return nil
	}
	return l.d.tryable()
}

// reclaimDue tells whether it is time for a claim to take events whose lease has run out.
func (l *loop) reclaimDue(now time.Time) bool {
	return l.mayReclaim(now) && !now.Before(l.nextReclaim)
}

// mayReclaim tells whether such events may be taken. Not while an event on its last attempt is there, whose process one of
// them might kill; nor right after an outage of the database, when live processes have yet to settle what they have in flight.
func (l *loop) mayReclaim(now time.Time) bool {
	return !l.reclaiming && l.lastAttempt == nil && !now.Before(l.reclaimFrom)
}

// onPassDone handles a pass that has come back. After an error what it was to settle is there again, except what is known to
// be settled; so is what was claimed, if it was committed.
func (l *loop) onPassDone(p *pass) {
	l.passes--
	l.settling -= len(p.finished)
	l.claiming -= p.want
	l.reserved -= p.reserved()
	if p.reclaims {
		l.reclaiming = false
	}
	if p.try != nil && len(p.x.claimed) == 0 {
		p.try.OnTry(false)
	}
	settled, open := p.x.divide(p.finished)
	l.finished = append(l.finished, open...)
	l.inFlight -= len(settled)
	l.leases.settled(settled)
	l.d.account(p.x)
	if p.want > 0 && (p.err == nil || len(p.x.claimed) > 0) {
		if len(p.x.claimed) == 0 && len(p.finished) == 0 {
			l.pace.Took(time.Since(p.began))
			l.Rest(l.pace.Pause())
		}
		l.onClaim(p)
	}
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
	l.d.log.Error("database round trip failed", "error", p.err)
	if p.want > 0 {
		l.backlog, l.claimAfter = false, place{}
		l.requestClaim() // a claim at the same time may have found nothing because this one had the rows locked
	}
	if p.tries == l.dbRetry.Tries() { // otherwise this outage has been waited out
		l.pause(l.dbRetry.Next())
	}
}

// reclaimPause is how long after an outage of the database every live process has had a pass.
const reclaimPause = backoff.LongestPause + backoff.LongestPause/2

// advance notes how far p has claimed. A full claim from the start of the index covers everything up to its last event, even
// if that moves the position back: there may be more that came late. A pass that started from the position says nothing about
// what is behind it.
func (l *loop) advance(p *pass) {
	claimed := p.x.claimed
	if l.backlog = len(claimed) == p.want; !l.backlog {
		l.claimAfter = place{}
		return
	}
	last := placeOf(claimed[len(claimed)-1])
	if !p.continues() || p.x.claim.after.compare(l.claimAfter) <= 0 && last.compare(l.claimAfter) > 0 {
		l.claimAfter = last
	}
}

// onClaim queues what a claim brought, and decides whether to continue claiming.
func (l *loop) onClaim(p *pass) {
	claimed := p.x.claimed
	tasks := make([]task, len(claimed))
	found := false
	for i := range claimed {
		t := &tasks[i]
		t.Claimed, t.try = claimed[i], p.try
		l.leases.add(t)
		l.inFlight++
		if to := l.d.target(t.Topic); to.Publisher != nil {
			l.inFlightBy[to]++
		}
		found = found || t.Reclaimed
		switch {
		case l.stopping:
			l.handBack(t)
		case t.Reclaimed && t.Attempt >= t.MaxAttempts:
			l.lastAttempt = t
			l.watchLastAttempt(l.d.lastAttemptLimit)
		default:
			l.start(t)
		}
	}
	if p.try != nil { // it says nothing about the other targets
		return
	}
	if p.reclaims && !found {
		l.nextReclaim = time.Now().Add(l.d.cfg.PollInterval)
	}
	l.advance(p)
	switch {
	case p.continues(): // it has not covered what may have come late
		l.claimable = true
	case len(claimed) > 0: // a short batch proves nothing: an event may have come since
		l.claimable = true
		l.Found()
	case p.generation == l.generation: // otherwise something has made it claimable since the pass started
		l.claimable = false
	}
	switch {
	case len(claimed) > 0:
		l.Busy()
	case l.claimable || l.claiming > 0:
	case l.Idle():
		l.d.signals.idle.Emit()
	}
}
