package queue

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// refused is the outcome of an event that PostgreSQL refuses to change, for example because of a user's trigger or
// constraint. Only a dispatcher sees it.
const refused Outcome = -1

// isRefusal reports whether PostgreSQL refused a statement because of its rows or values, so that it may accept others:
// data exceptions, constraints, limits, and errors raised by a trigger. Other errors do not depend on the row.
func isRefusal(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	for _, class := range [...]string{"22", "23", "44", "54", "P0"} {
		if strings.HasPrefix(pg.Code, class) {
			return true
		}
	}
	return false
}

// roundTripByParts is roundTrip, except that a refusal affects only the events that cause it. If PostgreSQL refuses x,
// it is split in halves until every event that can be settled is settled. The others have the outcome refused, with the
// reason.
func (s *Store) roundTripByParts(ctx context.Context, x *roundTrip) error {
	err := s.roundTrip(ctx, x)
	if x.committed || !isRefusal(err) {
		return err
	}
	claim := &roundTrip{claim: x.claim}
	if all := x.finals(); len(all) > 0 {
		x.outcomes()
		if err := s.roundTripHalves(ctx, x, all, claim.claim == nil); err != nil {
			return err // a repeat answers Already for what is settled
		}
	} else {
		return err
	}
	x.committed = true
	if claim.claim == nil {
		return nil
	}
	err = s.roundTrip(ctx, claim)
	x.buried = claim.buried
	x.claimed, x.strays, x.ends, x.claimedAt, x.claimTook = claim.claimed, claim.strays, claim.ends, claim.claimedAt, claim.claimTook
	return err
}

// final is one finalisation of a round trip: its list, and its index in that list.
type final struct {
	kind finalisation
	i    int
}

func (x *roundTrip) finals() []final {
	var all []final
	for of, n := range [...]int{acking: len(x.acks), nacking: len(x.nacks), releasing: len(x.releases), extending: len(x.extends)} {
		for i := range n {
			all = append(all, final{finalisation(of), i})
		}
	}
	return all
}

// outcomes makes room for the outcomes of x, all unknown.
func (x *roundTrip) outcomes() {
	x.acked, x.released, x.extended = make([]Outcome, len(x.acks)), make([]Outcome, len(x.releases)), make([]Outcome, len(x.extends))
	x.nacked, x.died = make([]Outcome, len(x.nacks)), make([]bool, len(x.nacks))
	x.refusals = make(map[fence]error)
}

// part returns a round trip of some of the finalisations of x.
func (x *roundTrip) part(some []final) *roundTrip {
	p := &roundTrip{lease: x.lease}
	for _, f := range some {
		switch f.kind {
		case acking:
			p.acks = append(p.acks, x.acks[f.i])
		case nacking:
			p.nacks = append(p.nacks, x.nacks[f.i])
		case releasing:
			p.releases = append(p.releases, x.releases[f.i])
		case extending:
			p.extends = append(p.extends, x.extends[f.i])
		}
	}
	return p
}

// merge copies the outcomes of p, which is the part of some, into x.
func (x *roundTrip) merge(some []final, p *roundTrip) {
	x.unsettled += p.unsettled
	var next [extending + 1]int
	for _, f := range some {
		i := next[f.kind]
		next[f.kind]++
		switch f.kind {
		case acking:
			x.acked[f.i] = p.acked[i]
		case nacking:
			x.nacked[f.i], x.died[f.i] = p.nacked[i], p.died[i]
		case releasing:
			x.released[f.i] = p.released[i]
		case extending:
			x.extended[f.i] = p.extended[i]
		}
	}
}

// refuse records that f is refused, and why.
func (x *roundTrip) refuse(f final, because error) {
	var c *Claimed
	switch f.kind {
	case acking:
		c, x.acked[f.i] = x.acks[f.i], refused
	case nacking:
		c, x.nacked[f.i] = &x.nacks[f.i].Claimed, refused
	case releasing:
		c, x.released[f.i] = x.releases[f.i], refused
	case extending:
		c, x.extended[f.i] = x.extends[f.i], refused
	}
	x.refusals[fence{c.ID, c.ClaimNo}] = because
}

// roundTripHalves settles some of x. known says that all of them together have been refused already.
func (s *Store) roundTripHalves(ctx context.Context, x *roundTrip, some []final, known bool) error {
	if !known || len(some) == 1 {
		p := x.part(some)
		switch err := s.roundTrip(ctx, p); {
		case p.committed:
			x.merge(some, p)
			return err // if it is not nil, some outcomes are not known yet
		case !isRefusal(err):
			return err
		case len(some) == 1:
			x.refuse(some[0], err)
			return nil
		}
	}
	half := len(some) / 2
	if err := s.roundTripHalves(ctx, x, some[:half], false); err != nil {
		return err
	}
	return s.roundTripHalves(ctx, x, some[half:], false)
}
