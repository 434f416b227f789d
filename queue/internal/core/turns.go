package core

import (
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/topiclane"
)

// Turn names a turn of a lane. The zero value is of events that have none.
type Turn struct {
	Lane int32
	Key  string
}

// TurnStart is where a claim begins in a turn. After does not count among the places of the whole lane.
type TurnStart struct {
	Turn
	After Place
}

// Hop is a turn after which a claim goes on from turn to turn in the order of their keys. An empty key is before all.
type Hop Turn

// TurnClaim is what a claim of events that have turns visits.
type TurnClaim struct {
	Known []TurnStart // turns that have more
	Front []Start     // whose turns have had an event fall due lately
	Hops  []Hop
	Piece int           // how many events of the front it passes in each lane
	Count int           // how many turns it sees after each of Hops
	Idle  int           // how many events of limited rate workers are idle for
	Ahead int           // how many more of them it may take
	Slack time.Duration // how long after the claim they may begin

	others bool   // it visits more than known turns
	size   int    // of the claim
	beside []Turn // of events that other passes settle meanwhile, so it may have counted them or not
}

const (
	// TurnPiece is how many events of one turn a claim passes, claimable or not.
	TurnPiece = 1000
	// FreshTurns is how many turns a claim visits that were not known to have more.
	FreshTurns = 32

	fewestHops, usualHops, mostHops = 16, 64, 1024
	// A claim passes a piece of the front, events of each lane.
	smallestFront, usualFront, largestFront = 100, 500, 8000
	// A claim visits a known turn for every mostShare events that it may take, so that it takes several of each. While the
	// turns give few, because their limits allow no more, it visits more of them: down to one for every leastShare events.
	leastShare, mostShare = 2, 8
	// maxTurns limits how many turns are remembered: those that have more, and those whose limit is reached. Rounds find
	// the others.
	maxTurns = 10_000
	// strayEvery is how often a dispatcher whose topics take no turns looks for events that have one.
	strayEvery = 10 * time.Second
	// newTurnsEvery is how long turns that are known to have more keep claims out of the others. While nothing of others is
	// found, that grows to seldomTurns.
	newTurnsEvery, seldomTurns = 20 * time.Millisecond, 50 * time.Millisecond
	// A round that is urgent pauses as long as its latest piece took, and hurryShare times as long as it took before the next
	// urgent one.
	hurryShare = 4
	// busyPause is the pause after a claim that has met nothing but turns that another claim had locked.
	busyPause = time.Millisecond
	// An event of limited rate may begin later by as much as slackFactor times what the latest claims took, or what it took to
	// open a payload. A rate loses that much, and the whole start of an event that could not begin in time.
	leastSlack, slackFactor = 25 * time.Millisecond, 8
	// halvesFor and contendedFor are how long a dispatcher remembers that it has met keys that another had locked.
	halvesFor, contendedFor = time.Second, 100 * time.Millisecond
)

// TurnState is how a visit to a turn has ended.
type TurnState int

const (
	// TurnMore: it may have more, after At if that is not zero, otherwise after what was claimed.
	TurnMore TurnState = iota + 1
	// TurnFull: a limit is reached. At.Due is when a rate allows more, if that is known.
	TurnFull
	// TurnBusy: another claim had locked a key of its limits.
	TurnBusy
	// TurnIdle: its rate allows more, and there was no worker for it.
	TurnIdle
	// TurnSeen: it was seen and not visited.
	TurnSeen
)

// TurnEnd is a turn that a claim has come to.
type TurnEnd struct {
	TurnStart
	State TurnState
}

// TurnsFound is what a claim of events that have turns has found besides.
type TurnsFound struct {
	Turns []TurnEnd
	Hops  map[int32]string // the last of a piece of hops, by lane; empty at the end
}

// turns makes the claims of events that have turns. Each claim visits turns that are known to have more. Now and then it
// visits those of events that fell due lately, which it finds at the front of their lanes, and a piece of a round over
// all turns. Rounds find what the others pass: events that were committed late or released, or whose lease ran out, and
// turns whose limit another process has filled.
type turns struct {
	lanes  []int32        // sorted
	shared map[int32]bool // those in which a limit counts events of several turns
	once   bool           // it ends after one round
	active bool           // some topic takes turns; otherwise events can have turns only because some topic has until lately
	stray  time.Time      // when to look for those
	front  Walk           // of lanes
	piece  int            // of the front
	clock  bool           // front knows the time of the database

	share int // a claim visits a known turn for so many events
	known map[Turn]*knownTurn
	ring  []*knownTurn // known in the order in which they are visited, and some that are not known any more

	full    map[Turn]bool    // whose limits are reached
	waiting map[int32][]Turn // full ones by lane, and some that are not full any more; those first that were full first
	until   []fullUntil      // sorted
	starved []Turn           // that wait for a worker
	hungry  bool             // the latest claim has left events of limited rate for want of workers
	ahead   ahead

	// After a claim has met keys of limits that another had locked, claims visit half of the known turns each until halves. If
	// that does not help, there is one claim at a time until contended.
	halves, contended time.Time

	slack   time.Duration // of the next claim
	fresh   bool          // something may have fallen due since the front was seen
	from    time.Time     // when to claim next
	others  time.Time     // when a claim visits more than known turns
	every   time.Duration
	round   round
	running bool // a claim under way visits more than known turns
	last    bool // the latest claim was of turns
}

// knownTurn is a turn that may have more.
type knownTurn struct {
	TurnStart
	gone bool // it is not known any more
}

type fullUntil struct {
	at   time.Time
	turn Turn
}

// round is a round over all turns.
type round struct {
	wanted, begun, again bool
	urgent, urgentAgain  bool      // it, and the next one, looks for what the front has passed
	from                 time.Time // when its next piece may begin
	free                 time.Time // when the next one may begin if it is urgent
	spent                time.Duration
	at                   map[int32]string
	done                 map[int32]bool // lanes
	count                int
	found                bool // something
}

func newTurns(lanes []int32, active bool) *turns {
	t := &turns{
		lanes: lanes, active: active, front: NewWalk(lanes), known: make(map[Turn]*knownTurn), full: make(map[Turn]bool), shared: make(map[int32]bool),
		waiting: make(map[int32][]Turn), share: mostShare, piece: usualFront, every: newTurnsEvery, round: round{count: usualHops},
	}
	if active {
		t.begin()
		t.round.urgent = true
	}
	return t
}

// TurnLanesOf returns the lanes of the events of topics that have turns. It is sorted.
func TurnLanesOf(topics []string) []int32 {
	lanes := make([]int32, 0, len(topics))
	for _, topic := range topics {
		lanes = append(lanes, topiclane.OfTurns(topic))
	}
	slices.Sort(lanes)
	return slices.Compact(lanes)
}

// soon asks for a round. It begins when the pause after the latest one is over.
func (t *turns) soon() {
	if t.active && !t.once {
		t.begin()
	}
}

// begin is soon, whether topics take turns or not.
func (t *turns) begin() {
	r := &t.round
	if r.wanted {
		r.again = r.begun
		return
	}
	if len(t.lanes) == 0 {
		return
	}
	r.wanted, r.begun, r.again, r.found = true, false, false, false
	r.at, r.done = make(map[int32]string, len(t.lanes)), make(map[int32]bool, len(t.lanes))
}

// hurry asks for a round that begins soon.
func (t *turns) hurry(now time.Time) {
	t.soon()
	if r := &t.round; r.begun {
		r.urgent, r.urgentAgain = true, true
	} else if r.wanted {
		r.urgent = true
		if from := later(now, r.free); from.Before(r.from) {
			r.from = from
		}
	}
}

// wake takes note that something may have been enqueued.
func (t *turns) wake() { t.fresh = t.active }

// due reports whether there is something to claim.
func (t *turns) due(now time.Time) bool {
	return !now.Before(t.from) && (len(t.known) > 0 || t.othersWanted(now))
}

// othersWanted reports whether more than known turns are to be visited.
func (t *turns) othersWanted(now time.Time) bool {
	return !t.running && (t.fresh || t.round.wanted && !now.Before(t.round.from))
}

// more reports whether turns that nobody has looked at may have something.
func (t *turns) more() bool { return len(t.known) > 0 || t.fresh || t.round.wanted }

// backlog reports whether another claim should start while one is under way, after one that has found n events of size.
func (t *turns) backlog(now time.Time, n, size int) bool {
	return n > 0 && (n == size || len(t.known) > 0) && !now.Before(t.contended)
}

// dueOthers reports whether it is time to visit more than known turns.
func (t *turns) dueOthers(now time.Time) bool {
	return t.due(now) && !now.Before(t.others) && t.othersWanted(now)
}

// next returns when there is something to do even if nothing happens; zero if there is no such time.
func (t *turns) next(now time.Time) (at time.Time) {
	if t.round.wanted && now.Before(t.round.from) {
		at = t.round.from
	}
	if len(t.until) > 0 {
		at = earlier(at, t.until[0].at)
	}
	if (len(t.known) > 0 || t.fresh) && now.Before(t.from) {
		at = earlier(at, t.from)
	}
	if !t.active && !t.round.wanted {
		at = earlier(at, t.stray)
	}
	return at
}

// onTime makes those turns known whose rate allows more by now.
func (t *turns) onTime(now time.Time) {
	for len(t.until) > 0 && !now.Before(t.until[0].at) {
		t.unfill(t.until[0].turn)
		t.until = t.until[1:]
	}
	if !t.active && !t.round.wanted && !now.Before(t.stray) {
		t.begin()
	}
}

// unfill makes a turn known that was full.
func (t *turns) unfill(turn Turn) {
	if t.full[turn] {
		delete(t.full, turn)
		t.know(TurnStart{Turn: turn})
	}
}

// know remembers that a turn may have more.
func (t *turns) know(s TurnStart) {
	k := t.known[s.Turn]
	switch {
	case t.full[s.Turn]:
	case k != nil:
		if s.After.Compare(k.After) > 0 || (s.After == Place{}) {
			k.After = s.After
		}
	case len(t.known) >= maxTurns:
		t.round.again = true
	default:
		k = &knownTurn{TurnStart: s}
		t.known[s.Turn] = k
		t.ring = append(t.ring, k)
	}
}

// unknow forgets that a turn may have more.
func (t *turns) unknow(turn Turn) {
	if k := t.known[turn]; k != nil {
		k.gone = true
		delete(t.known, turn)
	}
}

// visit returns up to n known turns, which come last from now on.
func (t *turns) visit(n int) (starts []TurnStart) {
	for visited := 0; len(starts) < n && visited < len(t.ring); {
		k := t.ring[0]
		if t.ring = t.ring[1:]; k.gone {
			continue
		}
		starts = append(starts, k.TurnStart)
		t.ring = append(t.ring, k)
		visited++
	}
	return starts
}

// fill takes note that a limit of a turn is reached, for rates until a time.
func (t *turns) fill(turn Turn, until time.Time) {
	if len(t.full) >= maxTurns {
		return
	}
	t.unknow(turn)
	if !t.full[turn] {
		t.full[turn] = true
		t.waiting[turn.Lane] = append(t.waiting[turn.Lane], turn)
	}
	if !until.IsZero() {
		i, _ := slices.BinarySearchFunc(t.until, until, func(f fullUntil, at time.Time) int { return f.at.Compare(at) })
		t.until = slices.Insert(t.until, i, fullUntil{until, turn})
	}
}

// freed takes note that an event of a turn is settled in the pass of the next claim. It makes room in the limits of its
// turn, and perhaps in one that it shares with others.
func (t *turns) freed(turn Turn) {
	if turn.Key == "" || len(t.full) == 0 {
		return
	}
	t.last = false // the pass claims for them
	t.unfill(turn)
	if !t.shared[turn.Lane] {
		return
	}
	queue := t.waiting[turn.Lane]
	for len(queue) > 0 {
		oldest := queue[0]
		queue = queue[1:]
		if t.full[oldest] {
			t.unfill(oldest)
			break
		}
	}
	t.waiting[turn.Lane] = queue
}

// took takes note of how long a claim took.
func (t *turns) took(d time.Duration) { t.slack = max(leastSlack, slackFactor*d, t.slack-t.slack/8) }

// opened takes note of how long it took to open the payload of an event of limited rate.
func (t *turns) opened(d time.Duration) {
	if slackFactor*d > t.slack {
		t.took(d)
	}
}

// feed makes those turns known that wait for a worker.
func (t *turns) feed() {
	for _, turn := range t.starved {
		t.know(TurnStart{Turn: turn})
	}
	t.starved = nil
}

// onRated takes in that the claim q, which found f, has taken n events of limited rate.
func (t *turns) onRated(q *TurnClaim, f *Found, n int) {
	most := q.Idle + q.Ahead
	t.hungry = most > 0 && n >= most || slices.ContainsFunc(f.Turns, func(e TurnEnd) bool { return e.State == TurnIdle })
	if most > 0 {
		t.ahead.claimed(n, most)
	}
}

// failed takes note that a claim failed: perhaps because it took too long. What it would have told is found in a round.
func (t *turns) failed() {
	t.piece, t.round.count = smallestFront, fewestHops
	t.forget()
}

// forget forgets everything except the front, and asks for a round.
func (t *turns) forget() {
	t.ring, t.starved, t.until = nil, nil, nil
	clear(t.known)
	clear(t.full)
	clear(t.waiting)
	t.soon()
}

// rest delays claims because everything is paused or rests.
func (t *turns) rest(now time.Time) { t.from, t.hungry = now.Add(lookEvery), false }

// request returns what a claim of up to size events visits, in the lanes that are in. It visits turns that are known to
// have more only with known. It may take events of limited rate for the workers rated.
func (t *turns) request(now time.Time, size int, rated workers, known bool, in func(lane int32) bool) *TurnClaim {
	if rated.some() {
		t.feed()
	}
	q := &TurnClaim{Idle: rated.idle, Ahead: rated.ahead, Slack: t.slack, size: size}
	n := 0
	if known {
		n = min(len(t.known), max(size/t.share, 1))
		if now.Before(t.halves) {
			n = min(n, (len(t.known)+1)/2) // the rest is for a claim at the same time
		}
	}
	for _, s := range t.visit(n) {
		if in(s.Lane) {
			q.Known = append(q.Known, s)
		} else {
			t.unknow(s.Turn)
		}
	}
	if len(q.Known) > 0 && (now.Before(t.others) || t.running) {
		return q
	}
	t.others = now.Add(t.every)
	q.Piece = t.piece
	if t.clock {
		for i, at := range t.front.stages {
			if in(t.lanes[i]) {
				q.Front = append(q.Front, Start{Lane: t.lanes[i], After: at.after})
			}
		}
	}
	if r := &t.round; r.wanted && !now.Before(r.from) {
		r.begun = true
		for _, lane := range t.lanes {
			if !r.done[lane] && in(lane) {
				q.Hops = append(q.Hops, Hop{lane, r.at[lane]})
			}
		}
		q.Count = r.count
		if len(q.Hops) == 0 { // everything else is paused or rests
			t.endRound(now)
		}
	}
	t.fresh, t.running, q.others = false, true, true
	return q
}

// over takes note that the claim q is over, whether its answer is known or not.
func (t *turns) over(q *TurnClaim) { t.running = t.running && !q.others }

// onClaim takes in what the claim q, which found f, says.
func (t *turns) onClaim(now time.Time, q *TurnClaim, f *Found) {
	t.over(q)
	last := make(map[Turn]Place)
	for i := range f.Rows {
		if e := &f.Rows[i]; e.At.Compare(last[e.turn()]) > 0 {
			last[e.turn()] = e.At
		}
	}
	if q.others {
		t.every = min(t.every*5/4, seldomTurns)
		if slices.ContainsFunc(f.Rows, func(e Seen) bool { return t.known[e.turn()] == nil }) {
			t.every = newTurnsEvery
		}
	}
	switch {
	case len(f.Rows) == q.size:
		t.share = min(2*t.share, mostShare)
	case 2*len(f.Rows) < q.size && len(q.Known) == q.size/t.share:
		t.share = max(t.share/2, leastShare)
	}
	t.onTurns(now, q, f, last)
	for _, turn := range q.beside {
		t.freed(turn)
	}
	t.front.count(len(f.Rows), now)
	if !t.clock || len(q.Front) > 0 {
		t.clock = true
		t.moveFront(now, q, f)
	}
	t.onHops(now, q, f)
	if len(f.Rows) > 0 {
		t.active = true
		t.round.found = t.round.found || len(q.Hops) > 0
		t.fresh = !t.once
		if t.soon(); !q.others && len(t.known) == 0 { // a backlog ends: is that all?
			t.hurry(now)
		}
	}
}

// turn returns the turn of e.
func (e *Seen) turn() Turn { return Turn{e.Lane, e.Turn} }

// onTurns remembers how the visits have ended.
func (t *turns) onTurns(now time.Time, q *TurnClaim, f *Found, last map[Turn]Place) {
	busy := len(f.Rows) == 0
	began := make(map[Turn]Place, len(q.Known))
	for _, s := range q.Known {
		began[s.Turn] = s.After
	}
	for _, end := range f.Turns {
		if end.State == TurnMore || end.State == TurnBusy {
			delete(began, end.Turn)
		}
	}
	for turn := range began {
		t.unknow(turn) // those that have more are known again
	}
	for _, s := range q.Known {
		began[s.Turn] = s.After
	}
	for _, end := range f.Turns {
		if end.State != TurnFull { // a limit that another process had filled, perhaps
			delete(t.full, end.Turn)
		}
		switch end.State {
		case TurnMore:
			if (end.After == Place{}) {
				end.After = last[end.Turn]
			}
			if (end.After == Place{}) {
				end.After = began[end.Turn]
			}
			t.know(end.TurnStart)
		case TurnFull:
			var until time.Time
			if !end.After.Due.IsZero() {
				until = now.Add(end.After.Due.Sub(f.At))
			}
			t.fill(end.Turn, until)
		case TurnIdle:
			t.starved = append(t.starved, end.Turn)
		case TurnBusy, TurnSeen:
			if end.State == TurnBusy {
				t.contend(now)
			}
			t.know(TurnStart{Turn: end.Turn, After: began[end.Turn]})
			busy = busy && end.State == TurnBusy
			continue
		}
		busy = false
	}
	if busy && len(t.known) > 0 {
		t.from = now.Add(busyPause)
	}
}

// contend takes note that a claim has met a key that another had locked.
func (t *turns) contend(now time.Time) {
	if now.Before(t.halves) {
		t.contended = now.Add(contendedFor)
	}
	t.halves = now.Add(halvesFor)
}

// moveFront moves the front to where the claim has ended. A front that stays behind, because many events have fallen due
// at once, leaves them to a round: these may all be of one turn, and others wait behind them.
func (t *turns) moveFront(now time.Time, q *TurnClaim, f *Found) {
	t.piece = nextPiece(t.piece, usualFront, largestFront, f, len(f.Ends) > 0)
	for i, lane := range t.front.lanes {
		at := &t.front.stages[i]
		end, ended := f.Ends[lane]
		switch {
		case ended:
			if at.after = end; !t.once && end.Due.Before(f.At.Add(-shortestTrail)) {
				at.after = Place{f.At.Add(-shortestTrail), lastID}
				t.hurry(now)
			}
			t.fresh, t.others = true, time.Time{}
		case len(q.Front) == 0 || slices.ContainsFunc(q.Front, func(s Start) bool { return s.Lane == lane }):
			if to := (Place{f.At.Add(-t.front.trail), lastID}); to.Compare(at.after) > 0 || len(q.Front) == 0 {
				at.after = to
			}
		}
	}
}

// onHops takes the round on.
func (t *turns) onHops(now time.Time, q *TurnClaim, f *Found) {
	r := &t.round
	if len(q.Hops) == 0 {
		return
	}
	over := true // of the lanes that are claimed
	for _, h := range q.Hops {
		if at := f.Hops[h.Lane]; at != "" {
			r.at[h.Lane], over = at, false
		} else {
			r.done[h.Lane] = true
		}
	}
	r.count = nextPiece(r.count, usualHops, mostHops, f, true)
	r.spent += f.Took
	switch {
	case over:
		t.endRound(now)
	case r.urgent:
		r.from = now.Add(f.Took)
	case len(t.known) > 0 || len(f.Rows) > 0:
		r.from = now.Add(lookShare * f.Took)
	default:
		r.from = now
	}
}

// endRound ends the round, and begins another if something may have come behind it.
func (t *turns) endRound(now time.Time) {
	r := &t.round
	r.from, t.stray = now.Add(max(lookEvery, lookShare*r.spent)), now.Add(strayEvery)
	r.free, r.spent = now.Add(hurryShare*r.spent), 0
	again, urgent := !t.once && (r.again || r.found), r.urgentAgain
	r.wanted, r.urgent, r.urgentAgain = false, false, false
	if !again {
		return
	}
	if t.soon(); urgent {
		t.hurry(now)
	}
}
