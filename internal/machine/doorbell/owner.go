package doorbell

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/machine/sleep"
)

// Doorbell is a doorbell whose owner numbers its own requests.
type Doorbell struct{ bell *doorbell }

// New returns a doorbell that does nothing before Run.
func New(e *Config) *Doorbell { return &Doorbell{newDoorbell(e)} }

// Run listens until ctx ends, and then gives up the lock, for which dbCtx bounds the time.
func (d *Doorbell) Run(ctx, dbCtx context.Context) { d.bell.run(ctx, dbCtx) }

// Request sets the state that the owner wants: asleep, so that enqueues ring, or awake. A request to be asleep is
// answered with its number, which is one higher than that of the request before.
func (d *Doorbell) Request(asleep bool) { d.bell.setRequest(asleep) }

// Rang receives when somebody has rung.
func (d *Doorbell) Rang() <-chan Ring { return d.bell.rang }

// Answers receives the answers.
func (d *Doorbell) Answers() <-chan Answer { return d.bell.answers }

// Loan returns what lends the owner the connection that has heard the ring.
func (r Ring) Loan() *Loan { return r.loan }

// Watched reports whether a sleeper has the lock: later enqueues will ring too.
func (r Ring) Watched() bool { return r.held || r.enqueued }

// Left reports whether an enqueue has rung for a sleeper of another process, which has the lock.
func (r Ring) Left() bool { return r.enqueued && !r.held }

// Request returns the number of the request.
func (a Answer) Request() int { return a.request }

// State returns what has become of it.
func (a Answer) State() sleep.Bell { return a.state }

// Loan returns what lends the owner the connection that has brought the answer.
func (a Answer) Loan() *Loan { return a.loan }
