package payload

import (
	"encoding/json"
	"regexp"
	"time"
)

// Checks collects what the checks of one payload or shared type find. The zero value has found nothing. A generated
// Validate method calls it once per rule and returns its Err.
//
// A method does what the function of its name does. None is inlined: a generated package has thousands of these calls,
// and inlined they would take the compiler several times as long.
type Checks struct{ found FieldErrors }

// Err returns nil if no check found anything, and a *ValidationError otherwise.
//
//go:noinline
func (c *Checks) Err(subject string) error { return Check(subject, c.found) }

// Add adds what a check found.
//
//go:noinline
func (c *Checks) Add(found FieldErrors) {
	if found != nil {
		c.found = append(c.found, found...)
	}
}

// Text is the function Text.
//
//go:noinline
func (c *Checks) Text(field, v string) { c.Add(Text(field, v)) }

// MinLen is the function MinLen.
//
//go:noinline
func (c *Checks) MinLen(field, v string, n int) { c.Add(MinLen(field, v, n)) }

// MaxLen is the function MaxLen.
//
//go:noinline
func (c *Checks) MaxLen(field, v string, n int) { c.Add(MaxLen(field, v, n)) }

// Match is the function Match.
//
//go:noinline
func (c *Checks) Match(field, v string, re *regexp.Regexp) { c.Add(Match(field, v, re)) }

// Finite is the function Finite.
//
//go:noinline
func (c *Checks) Finite(field string, v float64) { c.Add(Finite(field, v)) }

// RequiredUUID is the function RequiredUUID.
//
//go:noinline
func (c *Checks) RequiredUUID(field string, v [16]byte) { c.Add(RequiredUUID(field, v)) }

// RequiredTime is the function RequiredTime.
//
//go:noinline
func (c *Checks) RequiredTime(field string, v time.Time) { c.Add(RequiredTime(field, v)) }

// Instant is the function Instant.
//
//go:noinline
func (c *Checks) Instant(field string, v time.Time) { c.Add(Instant(field, v)) }

// JSON is the function JSON.
//
//go:noinline
func (c *Checks) JSON(field string, v json.RawMessage) { c.Add(JSON(field, v)) }
