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
	if x.committed || !isRefusal(err) || len(x.settlements) == 0 {
		return err
	}
	if err := s.settleHalves(ctx, x, x.settlements, x.claim == nil); err != nil {
		return err // a repeat answers Already for what is settled
	}
	x.committed = true
	if x.claim == nil {
		return nil
	}
	claim := &roundTrip{claim: x.claim}
	err = s.roundTrip(ctx, claim)
	x.claimed, x.orphans, x.deadOrphans, x.found = claim.claimed, claim.orphans, claim.deadOrphans, claim.found
	return err
}

// settleHalves settles some of x. known says that all of them together have been refused already.
func (s *Store) settleHalves(ctx context.Context, x *roundTrip, some []settlement, known bool) error {
	if !known || len(some) == 1 {
		part := &roundTrip{settlements: some, lease: x.lease}
		err := s.roundTrip(ctx, part)
		x.unsettled += part.unsettled
		switch {
		case part.committed:
			return err // if it is not nil, some outcomes are not known yet
		case !isRefusal(err):
			return err
		case len(some) == 1:
			some[0].outcome, some[0].refusal = refused, err
			return nil
		}
	}
	half := len(some) / 2
	if err := s.settleHalves(ctx, x, some[:half], false); err != nil {
		return err
	}
	return s.settleHalves(ctx, x, some[half:], false)
}
