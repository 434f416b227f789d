package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/internal/postgres/turn"
)

// Limit bounds how many events of a queue topic are handled at once, how many attempts start in a period, or both, over
// all processes together. An event that may not start yet waits: no attempt is charged, and no other event waits
// behind it.
type Limit struct {
	// Per says which events share the limit: "" all of the topic, PerTenant those of one tenant, PerDestination those of
	// one destination, and a template such as "{mailbox_id}" those with the same text.
	Per string
	// Concurrency is how many events of one key may be leased at any moment; 0 means any number.
	Concurrency int
	// Rate bounds the starts of attempts; the zero value means any number.
	Rate Rate
}

// The values of Limit.Per that are not templates.
const (
	PerTenant      = "tenant"
	PerDestination = "destination"
)

// Rate allows so many starts of attempts in each window of the length Period, wherever it begins. Retries count.
type Rate struct {
	Events int
	Period time.Duration
}

// String returns r as the YAML writes it, for example 10/1m; "" for the zero value.
func (r Rate) String() string {
	if r == (Rate{}) {
		return ""
	}
	period := r.Period.String()
	for _, zero := range [...]string{"m0s", "h0m"} { // 1h0m0s is 1h
		if short, is := strings.CutSuffix(period, zero); is {
			period = short + zero[:1]
		}
	}
	return strconv.Itoa(r.Events) + "/" + period
}

// ParseRate returns the rate that text means, which is as the YAML writes it: a number of events, a slash and a period,
// for example 10/1m. It returns an error for what CheckLimits refuses.
func ParseRate(text string) (Rate, error) {
	number, period, _ := strings.Cut(text, "/")
	events, err := strconv.Atoi(number)
	var r Rate
	if err == nil {
		r.Events = events
		r.Period, err = time.ParseDuration(period)
	}
	if err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: use a number of events and a period, such as 10/1m", text)
	}
	return r, r.check()
}

// MarshalText returns String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText sets r to what ParseRate returns; "" is the zero value.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r = Rate{}
	if len(text) > 0 {
		*r, err = ParseRate(string(text))
	}
	return err
}

// check returns an error that says what is wrong with r.
func (r Rate) check() error {
	switch {
	case r == Rate{}:
	case r.Events < 1 || r.Events > 1<<31-1:
		return fmt.Errorf("rate of %d events is not between 1 and 2147483647", r.Events)
	case r.Period < shortestPeriod || r.Period > longestPeriod:
		return fmt.Errorf("period %s of the rate is not between %s and %s", r.Period, shortestPeriod, longestPeriod)
	}
	return nil
}

// Batch makes a handler get several events of its topic in one call. The zero value means one event per call.
type Batch struct {
	// Size is how many events one call gets at most.
	Size int
	// Wait is how long the first event of a batch waits for others; 0 means not at all. In a topic with a rate it waits at most
	// for a 64th of the period.
	Wait time.Duration
}

// MaxLimits is how many limits a topic may have.
const MaxLimits = 4

// shortestPeriod and longestPeriod bound Rate.Period. A shorter one could not be kept by processes that are busy.
const shortestPeriod, longestPeriod = time.Second, 24 * time.Hour

// check returns an error that says what is wrong with l.
func (l Limit) check() error {
	switch {
	case l.Concurrency < 0 || l.Concurrency > 1<<31-1:
		return fmt.Errorf("limit per %q: concurrency %d is not between 1 and 2147483647", l.Per, l.Concurrency)
	case l.Concurrency == 0 && l.Rate == Rate{}:
		return fmt.Errorf("limit per %q has neither a concurrency nor a rate", l.Per)
	}
	if err := l.Rate.check(); err != nil {
		return fmt.Errorf("limit per %q: %w", l.Per, err)
	}
	return nil
}

// CheckLimits returns an error that says what is wrong with the limits of a topic.
func CheckLimits(limits []Limit) error {
	if len(limits) > MaxLimits {
		return fmt.Errorf("%d limits of at most %d", len(limits), MaxLimits)
	}
	for i, l := range limits {
		if err := l.check(); err != nil {
			return err
		}
		if slices.ContainsFunc(limits[:i], func(o Limit) bool { return o.Per == l.Per }) {
			return fmt.Errorf("two limits per %q", l.Per)
		}
	}
	return nil
}

// shapeOf returns the shape of the turns of a topic.
func shapeOf(topic string, fairness Fairness, limits []Limit) turn.Shape {
	if fairness == "" && len(limits) == 0 {
		return turn.Shape{}
	}
	pers := make([]string, len(limits))
	for i, l := range limits {
		pers[i] = l.Per
	}
	return turn.ShapeOf(topic, fairness == FairnessTenant, pers)
}

// checkLimits finds what is wrong with the limits of m and their keys.
func (m *Message) checkLimits() error {
	if m.Log {
		return errors.New("limits: listeners get the events of a log topic in order: use the settings of the listener")
	}
	if err := CheckLimits(m.Limits); err != nil {
		return err
	}
	keys := 0
	for _, l := range m.Limits {
		if l.Per == PerTenant && !m.TenantID.Valid {
			return errors.New("a limit per tenant needs the tenant of the event, which has none: set TenantID")
		}
		if turn.Keyed(l.Per) {
			keys++
		}
	}
	if keys != len(m.LimitKeys) {
		return fmt.Errorf("%d limits need a key of the event, which has %d", keys, len(m.LimitKeys))
	}
	for _, key := range m.LimitKeys {
		if !isText(key) {
			return fmt.Errorf("the key of a limit holds a NUL or is not UTF-8: %w", ErrPayloadInvalid)
		}
	}
	return nil
}

// turnOf returns the turn of m, which is checked.
func (m *Message) turnOf() string {
	shape := shapeOf(m.Topic, m.Fairness, m.Limits)
	if shape.IsZero() {
		return ""
	}
	return shape.Of(m.TenantID.UUID.String(), m.LimitKeys)
}
