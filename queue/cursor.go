package queue

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/queue/internal/core"
)

// columns are starts, for SQL.
type columns struct {
	lanes          []int32
	dues           []pgtype.Timestamptz
	ids            []pgtype.UUID
	quotas, pieces []int32
}

func columnsOf(starts []core.Start) columns {
	n := len(starts)
	c := columns{
		lanes: make([]int32, 0, n), dues: make([]pgtype.Timestamptz, 0, n), ids: make([]pgtype.UUID, 0, n),
		quotas: make([]int32, 0, n), pieces: make([]int32, 0, n),
	}
	for _, s := range starts {
		due := pgvalue.Time(s.After.Due)
		if !due.Valid {
			due = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
		}
		c.lanes, c.dues, c.ids = append(c.lanes, s.Lane), append(c.dues, due), append(c.ids, pgvalue.UUID(s.After.ID))
		c.quotas, c.pieces = append(c.quotas, int32(s.Quota)), append(c.pieces, int32(s.Piece))
	}
	return c
}

// Cursor is how far the claims of a Store have come. The zero value is the beginning. It must not be used concurrently.
type Cursor struct {
	begun  bool
	walk   core.Walk
	turns  core.TurnWalk
	paused *core.Pauses // what the walk has passed over
}

// Done reports whether the claims have come to the events that are not due.
func (c *Cursor) Done() bool { return c.begun && !c.more() }

func (c *Cursor) more() bool { return c.walk.More() || c.turns.More() }

// restart sends the claims back to the beginning.
func (c *Cursor) restart() {
	c.walk.Restart()
	c.turns.Restart()
}

// end makes the claims ones that have come to the end.
func (c *Cursor) end() {
	c.walk.End()
	c.turns.End()
}

// next sets what the next claim visits: first the events that have no turns, then the others. After the end it begins
// again.
func (c *Cursor) next(part *claim) *claim {
	ended := !c.more()
	if ended {
		c.turns.Again(time.Now())
	}
	if ended || c.walk.More() || !c.turns.More() {
		part.Starts = c.walk.Pieces(part.Size, false)
	} else if part.Turns = c.turns.Next(part.Size); len(part.Turns.Hops) == 0 {
		part.Reclaims = 0
	}
	return part
}

// failed takes note that the claim of part has failed.
func (c *Cursor) failed(part *claim) {
	if part.Turns != nil {
		c.turns.Failed()
	} else {
		c.walk.Failed()
	}
}

// advance moves to where the claim of part has ended, which found f.
func (c *Cursor) advance(part *claim, f *core.Found) {
	if part.Turns != nil {
		c.turns.Advance(time.Now(), part.Turns, part.Size, f)
	} else {
		c.walk.Advance(time.Now(), &part.Claim, f)
	}
}

// turnColumns are what a claim of turns visits, for SQL.
type turnColumns struct {
	known, front columns
	turns        []string // of known
	hopLanes     []int32
	hopTurns     []string
}

func turnColumnsOf(q *core.TurnClaim) (c turnColumns) {
	starts := make([]core.Start, len(q.Known))
	c.turns, c.hopLanes, c.hopTurns = make([]string, len(q.Known)), make([]int32, len(q.Hops)), make([]string, len(q.Hops))
	for i, s := range q.Known {
		starts[i], c.turns[i] = core.Start{Lane: s.Lane, After: s.After}, s.Key
	}
	for i, h := range q.Hops {
		c.hopLanes[i], c.hopTurns[i] = h.Lane, h.Key
	}
	c.known, c.front = columnsOf(starts), columnsOf(q.Front)
	return c
}
