package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
)

// TestDrainClaimsNothingAtItsLimit: it settles what it has handled, and ends.
func TestDrainClaimsNothingAtItsLimit(t *testing.T) {
	t.Parallel()
	d := drive(t, asDrain, func(c *Config) { c.Limit = 1 })
	task := d.tasks("handled", 1)[0]
	p := d.first()
	require.Equal(t, 1, p.Claim.Size)
	d.claimed(p, task)
	d.reported(errclass.ClassDone, task)
	p = the[*Pass](d)
	require.Nil(t, p.Claim)
	d.claimed(p)
	require.Equal(t, DrainLimit, the[*End](d).Drained)
}

// TestPassesAtTheEnd: no more are under way than usual.
func TestPassesAtTheEnd(t *testing.T) {
	t.Parallel()
	d := drive(t)
	tasks := d.tasks("handled", 4)
	d.claimed(d.first(), tasks...)
	claim := the[*Pass](d)
	d.step(0, Stop{})
	require.Equal(t, tasks[2:], the[*Pass](d).Settle)
	d.reported(errclass.ClassDone, tasks[0])
	none[*Pass](d)
	d.claimed(claim)
	require.Equal(t, tasks[:1], the[*Pass](d).Settle)
}

// TestLastAttemptStartsOnce: whatever happens while it runs.
func TestLastAttemptStartsOnce(t *testing.T) {
	t.Parallel()
	d := drive(t)
	task := d.tasks("handled", 1, again(3))[0]
	d.claimed(d.first(), task)
	require.Equal(t, Run{task}, the[Run](d))
	d.step(0, Tick{})
	none[Run](d)
}
