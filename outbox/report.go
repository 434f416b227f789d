package outbox

import (
	"fmt"
	"time"
)

// DrainLimit bounds a DrainUpTo of a dispatcher or listener. A drain that comes to a bound ends without an error, and
// its report says which bound it was. The zero value is no bound.
type DrainLimit struct {
	// Events is how many events are handled at most; 0 means any number. It is never exceeded. It counts each call of a
	// handler and each event that is given to a Publisher, whatever comes of it: an event that is tried twice counts
	// twice. It does not count what a transactional listener rolls back in order to find the event that breaks its
	// transaction.
	Events int
	// Time is how long handlers are started; 0 means any time. Handlers that run then may finish within ShutdownTimeout,
	// so a drain takes up to that longer, and the time of a statement.
	Time time.Duration
}

// DrainEnd is why a drain has ended. As text, and in JSON, it is "drained", "events", "time" or "stopped".
type DrainEnd uint8

const (
	EndDrained DrainEnd = iota // no more events were due
	EndEvents                  // DrainLimit.Events were handled; more may be due
	EndTime                    // DrainLimit.Time was over; more may be due
	EndStopped                 // an error, or the end of the context
)

var drainEnds = [...]string{EndDrained: "drained", EndEvents: "events", EndTime: "time", EndStopped: "stopped"}

// String returns the text of e.
func (e DrainEnd) String() string {
	if int(e) < len(drainEnds) {
		return drainEnds[e]
	}
	return fmt.Sprintf("DrainEnd(%d)", uint8(e))
}

// MarshalText returns the text of e. It returns an error if e is none of the constants.
func (e DrainEnd) MarshalText() ([]byte, error) {
	if int(e) >= len(drainEnds) {
		return nil, fmt.Errorf("marshal drain end: %d is not a valid DrainEnd", uint8(e))
	}
	return []byte(e.String()), nil
}

// UnmarshalText sets e from its text.
func (e *DrainEnd) UnmarshalText(text []byte) error {
	for end, name := range drainEnds {
		if string(text) == name {
			*e = DrainEnd(end)
			return nil
		}
	}
	return fmt.Errorf("unmarshal drain end: %q is not a valid DrainEnd", text)
}

// DrainReport says what a Drain of a dispatcher or listener did. It is queue.Report and listener.Report.
type DrainReport struct {
	Delivered int `json:"delivered"` // acked
	Retried   int `json:"retried"`   // failed, due again later
	Dead      int `json:"dead"`      // dead letters made, swept ones included
	Lost      int `json:"lost"`      // handled, but the lease was lost meanwhile
	// HandedBack counts how often an event came back with its attempt uncounted, because its target was unavailable.
	HandedBack int `json:"handed_back"`
	// Resting names what was unavailable at the end: topics, as "namespace/name", and destinations, as
	// "broker:destination". Their events wait.
	Resting []string `json:"resting,omitempty"`
	// Ended says why the drain ended. With any value except EndDrained, more events may be due.
	Ended DrainEnd `json:"ended"`
}

// Add adds the numbers of o to those of r. Resting and Ended stay as they are.
func (r *DrainReport) Add(o DrainReport) {
	r.Delivered += o.Delivered
	r.Retried += o.Retried
	r.Dead += o.Dead
	r.Lost += o.Lost
	r.HandedBack += o.HandedBack
}
