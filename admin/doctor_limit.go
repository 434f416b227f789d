package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/outbox"
)

const (
	// incomingTail is how many of the latest events are counted for what comes in.
	incomingTail = 100_000
	// longRising is for how long more must have come in than a rate allows.
	longRising = time.Hour
)

// checkLimits: running processes have the limits that are in force, can reach them, and no more comes in than they
// allow. It also says what waits at a limit, and what operators have set.
func checkLimits(ctx context.Context, e *examination) (found []Finding, err error) {
	var rows []queries.DoctorLimitsRow
	var waits []LimitWait
	var processes []Process
	err = e.read(ctx, func(ctx context.Context, _ pgx.Tx, q *queries.Queries) error {
		err := q.SessionGuard(ctx)
		if err != nil {
			return err
		}
		if rows, err = q.DoctorLimits(ctx, incomingTail); err != nil {
			return err
		}
		if waits, err = limitWaits(ctx, q, headSize, false); err != nil {
			return err
		}
		processes, err = aliveProcesses(ctx, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	declared := make(map[string][]queries.DoctorLimitsRow)
	for _, r := range rows {
		name := r.Namespace + "/" + r.Topic
		declared[name] = append(declared[name], r)
		i := slices.IndexFunc(waits, func(w LimitWait) bool { return w.LimitScope == limitScopeOf(r) })
		if i >= 0 {
			found = append(found, e.waitingAt(r, waits[i])...)
		}
		found = append(found, unreachable(r, processes)...)
		if r.IsSet {
			found = append(found, e.setByHand(r))
		}
	}
	return append(found, e.otherLimits(declared, processes)...), nil
}

// limitScopeOf names the limit of r, declaredOf is what the YAML of the process has that started last, and inForce what
// claims read.
func limitScopeOf(r queries.DoctorLimitsRow) LimitScope {
	return LimitScope{r.Namespace, r.Topic, r.Per}
}

func declaredOf(r queries.DoctorLimitsRow) LimitValue {
	return LimitValue{int(r.Concurrency), outbox.Rate{Events: int(r.Rate), Period: microseconds(r.PeriodUs)}}
}

func inForce(r queries.DoctorLimitsRow) LimitValue {
	var set LimitValue
	if r.IsSet {
		set = LimitValue{int(r.SetConcurrency), outbox.Rate{Events: int(r.SetRate), Period: microseconds(r.SetPeriodUs)}}
	}
	return set.or(declaredOf(r))
}

// waitingAt says what has waited at a limit for long, and whether more comes in than its rate allows.
func (e *examination) waitingAt(r queries.DoctorLimitsRow, w LimitWait) (found []Finding) {
	if w.Longest < longDue {
		return nil
	}
	limit, name := inForce(r), r.Namespace+"/"+r.Topic
	f := Finding{
		Severity: SeverityNotice,
		Text: fmt.Sprintf("%s wait at the limit of %s (%s), the oldest since %s", atLeast(w.Waiting.N), w.LimitScope, limit,
			age(w.Longest)),
		Means: "they start as soon as the limit allows it, and no attempt is charged",
		Fix: e.command("limit list "+name) + " shows what is used; if the target can take more, raise the limit in the " +
			"YAML, and until that is deployed: " + e.command("limit set "+name+perFlag(r.Per)+valueFlags(limit)),
	}
	if r.Per != "" {
		f.Means += "; events of other keys do not wait for them"
	}
	if more := moreThan(limit, r, w); more != "" {
		f.Severity, f.Text = SeverityWarning, f.Text+", and more comes in than it allows"+more
		f.Means = "its backlog grows for as long as that lasts"
	}
	return []Finding{f}
}

// moreThan says how much comes in, if it is more than the rate of a limit has allowed for an hour. What comes in for
// the keys of templates and destinations is not known, except that events have waited for so long.
func moreThan(limit LimitValue, r queries.DoctorLimitsRow, w LimitWait) string {
	sample, known := microseconds(r.SampleUs), r.Per == "" || r.Per == outbox.PerTenant
	switch {
	case limit.Rate.Events == 0 || known && sample <= 0 || (!known || sample < longRising) && w.Longest < longRising:
		return ""
	case !known:
		return " for a key"
	}
	allowed := perSecond(int64(limit.Rate.Events), limit.Rate.Period.Microseconds())
	if perSecond(r.Incoming, r.SampleUs) <= allowed {
		return ""
	}
	text := fmt.Sprintf(": %d in %s", r.Incoming, age(sample))
	if r.Per == outbox.PerTenant {
		text += " of one tenant"
	}
	return text
}

// unreachable finds a concurrency of a whole topic that the running processes cannot reach together.
func unreachable(r queries.DoctorLimitsRow, processes []Process) []Finding {
	most, sum, running := inForce(r).Concurrency, 0, 0
	if most == 0 || r.Per != "" || r.CountedAs != r.Topic {
		return nil
	}
	for _, p := range processes {
		known, runs := p.Topics[r.Namespace+"/"+r.Topic]
		switch {
		case p.Kind != ProcessDispatcher || !runs:
			continue
		case known.AtOnce == 0: // it does not say
			return nil
		}
		sum += known.AtOnce
		running++
	}
	if running == 0 || sum >= most {
		return nil
	}
	return []Finding{{
		Severity: SeverityNotice,
		Text: fmt.Sprintf("the limit of %s (%s) cannot be reached: its running processes (%d) handle at most %d of its "+
			"events at once", limitScopeOf(r), LimitValue{Concurrency: most}, running, sum),
		Means: "the limit has no effect, and Concurrency of the processes bounds the topic",
		Fix:   "raise Concurrency or start more processes, or lower the limit in the YAML",
	}}
}

// setByHand says what an operator has set.
func (e *examination) setByHand(r queries.DoctorLimitsRow) Finding {
	until := ""
	if r.SetUntil.Valid {
		until = ", until " + r.SetUntil.Time.UTC().Format(time.RFC3339)
	}
	return Finding{
		Severity: SeverityNotice,
		Text: fmt.Sprintf("the limit of %s is set to %s since %s by %s%s; the YAML has %s", limitScopeOf(r), inForce(r),
			r.SetAt.Time.UTC().Format(time.RFC3339), brief(r.SetBy), until, declaredOf(r)),
		Means: "processes that start do not change it",
		Fix:   e.command("limit reset "+r.Namespace+"/"+r.Topic+cmp.Or(perFlag(r.Per), " --per ''")) + " --yes",
	}
}

// otherLimits finds running processes whose YAML has other limits than those in force. Not during a deployment.
func (e *examination) otherLimits(
	declared map[string][]queries.DoctorLimitsRow, processes []Process,
) (found []Finding) {
	said := make(map[string]bool)
	for _, p := range processes {
		if p.Kind != ProcessDispatcher || p.SeenAt.Sub(p.StartedAt) < longDue {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(p.Topics)) {
			var limits []outbox.Limit
			recent := false
			for _, r := range declared[name] {
				v := declaredOf(r)
				limits = append(limits, outbox.Limit{Per: r.Per, Concurrency: v.Concurrency, Rate: v.Rate})
				recent = recent || microseconds(r.DeclaredUs) < longDue
			}
			own := p.Topics[name].Limits
			if said[name] || recent || sameLimits(own, limits) {
				continue
			}
			said[name] = true
			means := "the process that started last decides, so this one works with limits that its YAML does not have"
			if len(own) == 0 {
				means = "it takes events that have no keys yet without limits: those that older processes enqueue"
			}
			found = append(found, Finding{
				Severity: SeverityWarning,
				Text: fmt.Sprintf("a process of %s (host %s, pid %d) has other limits than those in force: %s, and not %s", name,
					brief(p.Host), p.PID, limitsText(own), limitsText(limits)),
				Means: means,
				Fix:   "deploy the same outbox.yaml everywhere; the process that starts next decides",
			})
		}
	}
	return found
}

// sameLimits compares limits regardless of their order.
func sameLimits(a, b []outbox.Limit) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(l outbox.Limit) bool { return !slices.Contains(b, l) })
}

func limitsText(limits []outbox.Limit) string {
	if len(limits) == 0 {
		return "none"
	}
	var texts []string
	for _, l := range limits {
		text := LimitValue{l.Concurrency, l.Rate}.String()
		if l.Per != "" {
			text += " per " + l.Per
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// perFlag is the flag of the command limit.
func perFlag(per string) string {
	switch {
	case per == "":
		return ""
	case strings.ContainsAny(per, "{} "):
		return " --per '" + per + "'"
	}
	return " --per " + per
}

// valueFlags are the flags of limit set for what v has.
func valueFlags(v LimitValue) (flags string) {
	if v.Concurrency > 0 {
		flags += " --concurrency N"
	}
	if v.Rate.Events > 0 {
		flags += " --rate N/P"
	}
	return flags + " --yes"
}
