package model

import (
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// policy holds the settings that apply somewhere: built in, from defaults, from a topic.
type policy struct {
	retry     Retry
	lease     time.Duration
	retention Retention
	wake      bool
}

// builtIn applies where the YAML has no setting.
var builtIn = policy{
	retry:     Retry{MaxAttempts: 25, BaseDelay: time.Second, MaxDelay: 30 * time.Minute},
	lease:     30 * time.Second,
	retention: Retention{Delivered: 7 * 24 * time.Hour, Dead: 30 * 24 * time.Hour},
	wake:      true,
}

// The bounds. The longest horizon, maxAttempts delays of maxDelay, fits a time.Duration.
const (
	maxAttempts  = 1000
	minDelay     = time.Millisecond
	maxDelay     = 30 * 24 * time.Hour
	minLease     = time.Second
	maxLease     = 24 * time.Hour
	maxRetention = 100 * 365 * 24 * time.Hour
)

// shortHorizon is how long a restart, a deployment or a failover of what handlers call may take.
const shortHorizon = 10 * time.Minute

// override returns base with the settings of s, and reports what is out of bounds. A finding points only at a
// setting that was written there, so that a mistake in defaults is reported once and not per topic.
func (b *builder) override(base policy, s *spec.Policy, where string) policy {
	p := policy{
		retry:     b.retry(base.retry, &s.Retry, where),
		lease:     b.lease(base.lease, s.Lease, where),
		retention: b.retention(base.retention, &s.Retention, where),
		wake:      base.wake,
	}
	if s.Wake.Set() {
		p.wake = s.Wake.V != "none"
	}
	return p
}

// lease returns v, or base when it is not set.
func (b *builder) lease(base time.Duration, v spec.Value[time.Duration], where string) time.Duration {
	if !v.Set() {
		return base
	}
	if v.V < minLease || v.V > maxLease {
		b.Errorf(v.Pos, diag.LeaseBounds, "lease: %s in %s is not between %s and %s", showDuration(v.V), where,
			showDuration(minLease), showDuration(maxLease))
	}
	return v.V
}

// retry returns base with the settings of s.
func (b *builder) retry(base Retry, s *spec.Retry, where string) Retry {
	r := base
	if s.MaxAttempts.Set() {
		if n := s.MaxAttempts.V; n < 1 || n > maxAttempts {
			b.Errorf(s.MaxAttempts.Pos, diag.RetryBounds, "retry.max_attempts: %d in %s is not between 1 and %d", n, where,
				maxAttempts)
		} else {
			r.MaxAttempts = int(n)
		}
	}
	inBounds := true
	delay := func(key string, v spec.Value[time.Duration], into *time.Duration) {
		if !v.Set() {
			return
		}
		*into = v.V
		if v.V < minDelay || v.V > maxDelay {
			b.Errorf(v.Pos, diag.RetryBounds, "retry.%s: %s in %s is not between %s and %s", key, showDuration(v.V), where,
				showDuration(minDelay), showDuration(maxDelay))
			inBounds = false
		}
	}
	delay("base_delay", s.BaseDelay, &r.BaseDelay)
	delay("max_delay", s.MaxDelay, &r.MaxDelay)
	if !inBounds {
		r.BaseDelay, r.MaxDelay = base.BaseDelay, base.MaxDelay
		return r
	}
	if pos := firstSet(s.BaseDelay, s.MaxDelay); pos.IsValid() && r.BaseDelay > r.MaxDelay {
		b.Errorf(pos, diag.RetryBounds, "retry: base_delay %s is above max_delay %s in %s", showDuration(r.BaseDelay),
			showDuration(r.MaxDelay), where)
	}
	return r
}

// retention returns base with the settings of s.
func (b *builder) retention(base Retention, s *spec.Retention, where string) Retention {
	r := base
	if s.Delivered.Set() {
		r.Delivered = s.Delivered.V
	}
	if s.Dead.Set() {
		r.Dead = s.Dead.V
	}
	for _, v := range []spec.Value[time.Duration]{s.Delivered, s.Dead} {
		if v.Set() && v.V > maxRetention {
			b.Errorf(v.Pos, diag.RetentionBounds, "retention: %s in %s is longer than %s", showDuration(v.V), where,
				showDuration(maxRetention))
			return r
		}
	}
	pos := firstSet(s.Dead, s.Delivered)
	switch {
	case s.Dead.Set() && r.Dead == 0:
		b.Errorf(pos, diag.RetentionBounds,
			"retention.dead: 0s in %s would delete dead letters before anybody sees them: use a longer time", where)
	case pos.IsValid() && r.Dead < r.Delivered:
		b.Errorf(pos, diag.RetentionBounds, "retention.dead: %s in %s is shorter than retention.delivered %s",
			showDuration(r.Dead), where, showDuration(r.Delivered))
	}
	return r
}

// short warns about retries that end before a short outage does. It only applies where a retry was written: the
// built-in retries last for hours.
func (b *builder) short(r Retry, s *spec.Retry, where string) {
	if pos := retryPos(s); pos.IsValid() && r.BaseDelay <= r.MaxDelay && r.Horizon() < shortHorizon {
		b.Warnf(pos, diag.RetryShort, "retry: the attempts in %s end after %s, so an outage of %s turns events into dead "+
			"letters: raise max_attempts or max_delay", where, showDuration(r.Horizon()), showDuration(shortHorizon))
	}
}

// horizon reports a policy under which an event may be deleted while it is still retried.
func (b *builder) horizon(p policy, s *spec.Policy, where string) {
	pos := s.Retention.Delivered.Pos
	if !pos.IsValid() {
		pos = retryPos(&s.Retry)
	}
	delivered, horizon := p.retention.Delivered, p.retry.Horizon()
	if pos.IsValid() && delivered > 0 && delivered <= horizon {
		b.Errorf(pos, diag.RetentionBounds,
			"retention.delivered: %s in %s must be longer than %s, the longest time that an event is retried",
			showDuration(delivered), where, showDuration(horizon))
	}
}

// retryPos returns where s sets how long an event is retried, or the zero Pos.
func retryPos(s *spec.Retry) diag.Pos {
	if pos := firstSet(s.MaxDelay, s.BaseDelay); pos.IsValid() {
		return pos
	}
	return s.MaxAttempts.Pos
}

// dedupeWindow reports a topic with a dedupe key that deletes its events on ack: duplicates are found in delivered
// events.
func (b *builder) dedupeWindow(s *spec.Topic, t *Topic) {
	if !s.DedupeKey.Set() || t.Retention.Delivered > 0 {
		return
	}
	pos, from := s.Policy.Retention.Delivered.Pos, ""
	if !pos.IsValid() {
		pos, from = s.DedupeKey.Pos, ", from defaults,"
	}
	b.Errorf(pos, diag.RetentionBounds,
		"retention.delivered: 0s%s deletes events of topic %s on ack, but its dedupe_key needs them: use a longer time, or "+
			"remove the dedupe_key", from, showTopic(t))
}

func firstSet(values ...spec.Value[time.Duration]) diag.Pos {
	for _, v := range values {
		if v.Set() {
			return v.Pos
		}
	}
	return diag.Pos{}
}

// ShowDuration returns d as messages show it: 168h, not 168h0m0s.
func ShowDuration(d time.Duration) string { return showDuration(d) }

// showDuration returns d without the zero units that time.Duration writes: 168h, not 168h0m0s.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
