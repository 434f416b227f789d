// Package sleep computes how long a machine with nothing to do waits.
package sleep

import "time"

// Pace measures checks that find nothing. The cost of a check may grow with what other transactions have not committed.
// A pause of four times its length limits an idle owner to a fifth of a backend's time. The zero value is ready. It is
// not for concurrent use.
type Pace struct {
	began        time.Time
	latest, then time.Duration
}

// pauseFactor is the minimum length of a pause, in lengths of the check before it.
const pauseFactor = 4

// Start begins a check.
func (p *Pace) Start(now time.Time) { p.began = now }

// Stop ends a check that has found nothing.
func (p *Pace) Stop(now time.Time) { p.Took(now.Sub(p.began)) }

// Took records a check that has found nothing.
func (p *Pace) Took(d time.Duration) { p.latest, p.then = d, p.latest }

// Pause is how long to wait before the next check, unless the doorbell rings. The shorter of the latest two checks
// counts, because a single check that had to wait for the database says nothing about the next one.
func (p *Pace) Pause() time.Duration { return pauseFactor * min(p.latest, p.then) }
