package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/outbox"
)

// watchEvery is how often status --watch looks.
const watchEvery = 2 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var db database
	var watch, check bool
	var dead int64
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, what fails and who runs it, for all topics and listeners",
		Long: `status prints the queue topics and the listeners of a schema, the consumer groups that keep messages in
it because they could not apply them, and then a line for each thing that may need an operator. It reads little, also
next to millions of events. Numbers are exact up to 100,000.

DUE        events that could be handled now, or as soon as a limit allows it
RETRYING   events that have failed, or whose target was unavailable, and wait for the next attempt
SCHEDULED  events that were never tried and are due later
IN FLIGHT  events that a process handles
DEAD       dead letters
OLDEST     age, since its enqueue, of the oldest event that waits or is in flight; scheduled ones do not count
RATE       delivered events per second over the last five minutes
RUN BY     processes that run the topic or listener and were seen in the last ninety seconds
UNREAD     events that a listener has not read: an estimate, counting all topics
PARKED     events that wait behind a failed event of their key; messages that a consumer tries again, or that wait

With --check the command exits with 1 if a bound is broken, and prints a line on stderr for each: a topic or
listener has events older than its max_lag; a topic has due events and no process runs it; a listener needs a
rebase after a restore; a topic, listener or consumer has more dead letters than --dead allows. max_lag is that of
outbox.yaml if the file is there. Otherwise it is that of the running processes and of the attached listeners.`,
		Example: `  outboxgen status
  outboxgen status --watch
  outboxgen status --check --dead 0`,
		Args: cobra.NoArgs,
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case watch && (check || a.json):
			return errors.New("--watch cannot be combined with --check or --json")
		case c.Flags().Changed("dead") && !check:
			return errors.New("--dead needs --check")
		case dead < 0 && c.Flags().Changed("dead"):
			return fmt.Errorf(
				"--dead: %d must not be negative: it is how many dead letters a topic, listener or consumer may have", dead)
		}
		return nil
	}
	c.RunE = run(func(ctx context.Context, _ []string) error {
		m, schema, err := db.modelAndSchema(a)
		if err != nil {
			return err
		}
		bounds := statusBounds{model: m, dead: -1}
		if c.Flags().Changed("dead") {
			bounds.dead = dead
		}
		return a.withAdmin(ctx, &db, schema, func(ops *admin.Admin) error {
			if watch {
				return a.watchStatus(ctx, ops, bounds)
			}
			s, err := readStatus(ctx, ops, bounds)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(s)
			} else {
				err = a.printStatus(s)
			}
			if err != nil || !check || len(s.Broken) == 0 {
				return err
			}
			for _, line := range s.Broken {
				a.notef("%s", line)
			}
			return errReported
		})
	})
	db.flags(c)
	c.Flags().BoolVar(&watch, "watch", false, "show it again every two seconds, until Ctrl-C")
	c.Flags().BoolVar(&check, "check", false, "exit with 1 if a bound is broken")
	c.Flags().Int64Var(&dead, "dead", 0,
		"with --check, the `number` of dead letters that each topic, listener and consumer may have (default: no bound)")
	return c
}

// watchStatus prints the status again and again. On a terminal each one replaces the one before. Only the first one
// fails the command: people who watch an outage want to see its end.
func (a *app) watchStatus(ctx context.Context, ops *admin.Admin, bounds statusBounds) error {
	clearScreen := ""
	if f, ok := a.Stdout.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			clearScreen = "\x1b[H\x1b[2J"
		}
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		s, err := readStatus(ctx, ops, bounds)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		}
		_ = a.printf("%s%s\n", clearScreen, time.Now().Format(time.DateTime))
		if err != nil {
			a.notef("outboxgen: %s", oneLine(err.Error()))
		} else {
			_ = a.printStatus(s)
		}
		if err := a.printf("\n"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// statusBounds are what --check compares with.
type statusBounds struct {
	model *model.Model // nil if there is no YAML
	dead  int64        // negative means any number
}

// topic returns the max_lag of a topic, and whether the YAML has it.
func (b statusBounds) topic(name string) (time.Duration, bool) {
	if b.model != nil {
		for _, n := range b.model.Namespaces {
			for _, t := range n.Topics {
				if t.FullName() == name {
					return t.MaxLag, true
				}
			}
		}
	}
	return 0, false
}

func (b statusBounds) listener(name string) (time.Duration, bool) {
	if b.model != nil {
		for _, l := range b.model.Listeners {
			if l.Name == name {
				return l.MaxLag, true
			}
		}
	}
	return 0, false
}

// status is what the command shows.
type status struct {
	Topics    []admin.TopicStatus    `json:"topics"`
	Listeners []admin.ListenerStatus `json:"listeners"`
	Consumers []admin.ConsumerStatus `json:"consumers"`
	Limits    []limitView            `json:"limits"`   // without their keys
	Problems  []string               `json:"problems"` // what may need an operator
	Broken    []string               `json:"broken"`   // bounds
}

func readStatus(ctx context.Context, ops *admin.Admin, bounds statusBounds) (*status, error) {
	s := &status{Problems: []string{}, Broken: []string{}}
	var err error
	if s.Topics, err = ops.Topics(ctx); err != nil {
		return nil, err
	}
	shards, err := ops.Listeners(ctx)
	if err != nil {
		return nil, err
	}
	if s.Limits, err = readLimits(ctx, ops); err != nil {
		return nil, err
	}
	for i := range s.Limits {
		s.Limits[i].Keys = nil
	}
	for i, t := range s.Topics {
		if lag, known := bounds.topic(t.Name()); known {
			s.Topics[i].MaxLag = lag
		}
		s.judgeTopic(s.Topics[i], bounds.dead)
	}
	s.Listeners = admin.SumShards(shards)
	for i, l := range s.Listeners {
		if lag, known := bounds.listener(l.Listener); known {
			s.Listeners[i].MaxLag = lag
			s.Listeners[i].Alarm = l.State == admin.ListenerRestored || lag > 0 && l.Lag > lag
		}
		s.judgeListener(s.Listeners[i], bounds.dead)
	}
	s.judgeDestinations()
	consumers, err := ops.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	s.Consumers = append([]admin.ConsumerStatus{}, consumers...) // nil would be null
	for _, c := range s.Consumers {
		s.judgeConsumer(c, bounds.dead)
	}
	return s, nil
}

// problem notes something that may need an operator; broken something that is a broken bound, too.
func (s *status) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *status) broke(format string, args ...any) {
	s.problem(format, args...)
	s.Broken = append(s.Broken, s.Problems[len(s.Problems)-1])
}

func (s *status) judgeTopic(t admin.TopicStatus, dead int64) {
	name := "topic " + t.Name()
	if some(t.Due) || some(t.Expired) {
		if t.Unhandled {
			s.broke("%s: no process runs it, and %s due", name, are(t.Due, t.Expired))
		}
	} else if t.Unhandled {
		s.problem("%s: no process runs it", name)
	}
	if t.MaxLag > 0 && t.Oldest > t.MaxLag {
		why := ""
		if slices.ContainsFunc(s.Limits, func(l limitView) bool { return l.of(t) && some(l.Waiting) }) {
			why = ": it has events that wait at a limit"
		}
		s.broke("%s: the oldest event has waited %s, longer than max_lag %s%s", name, ageText(t.Oldest), span(t.MaxLag), why)
	}
	if dead >= 0 && t.Dead.N > dead {
		s.broke("%s: %s, more than %s", name, countText(t.Dead, "dead letter"), commas(dead))
	}
	for _, v := range t.UnhandledVersions {
		s.problem("%s: events of version %d wait: no running process knows it", name, v)
	}
	for _, r := range t.Resting {
		s.problem("%s: rests in %s, because its target is unavailable: %s", name, processOf(t.Processes, r),
			errtext.Short(r.Reason))
	}
	s.paused(name, t.Pauses)
	for _, l := range s.Limits {
		if l.of(t) {
			s.judgeLimit(name, l)
		}
	}
	if some(t.Expired) {
		s.problem("%s: %s an expired lease: a process has died or has lost the database", name, has(t.Expired))
	}
}

// judgeLimit notes what waits at a limit, and what an operator has set.
func (s *status) judgeLimit(name string, l limitView) {
	which := "its limit"
	if l.Per != "" {
		which += " per " + l.Per
	}
	if some(l.Waiting) {
		wait := "wait"
		if l.Waiting.N == 1 && !l.Waiting.More {
			wait = "waits"
		}
		s.problem("%s: %s %s at %s (%s), the oldest for %s: %s", name, countText(l.Waiting, "event"), wait, which, l.Value,
			l.oldest(), usesText(l.Value, l.Running, l.Starts))
	}
	if l.Set == nil {
		return
	}
	text := fmt.Sprintf("%s: %s is set to %s by %s since %s", name, which, l.Value, brief(l.Set.Who), second(l.Set.At))
	if !l.Set.Until.IsZero() {
		text += " until " + second(l.Set.Until)
	}
	s.problem("%s", text)
}

func (s *status) judgeListener(l admin.ListenerStatus, dead int64) {
	name := "listener " + l.Listener
	switch {
	case l.State == admin.ListenerRestored:
		s.broke("%s: %v", name, outbox.ErrRestored)
	case len(l.Processes) == 0:
		s.problem("%s: no process runs it", name)
	}
	if l.MaxLag > 0 && l.Lag > l.MaxLag {
		s.broke("%s: the oldest event has waited %s, longer than max_lag %s", name, ageText(l.Lag), span(l.MaxLag))
	}
	if dead >= 0 && l.DeadLetters > dead {
		s.broke("%s: %s, more than %s", name, countText(admin.Count{N: l.DeadLetters}, "dead letter"), commas(dead))
	}
	if l.Attempts > 0 {
		s.problem("%s: an event has failed %s and blocks its shard: %s", name, times(l.Attempts), errtext.Short(l.LastError))
	}
	for _, p := range l.Processes {
		for _, topic := range slices.Sorted(maps.Keys(p.Resting)) {
			if _, ok := p.Topics[topic]; ok {
				s.problem("%s: topic %s rests in %s, because its target is unavailable: %s", name, topic, hostOf(p),
					errtext.Short(p.Resting[topic]))
			}
		}
	}
	for _, v := range l.UnhandledVersions {
		s.problem("%s: events of %s with version %d wait: no running process knows it", name, v.Topic, v.Version)
	}
	for _, p := range l.PassedTopics() {
		s.problem("%s: %s passes the events of %s, which %s reads: a deployment is under way, or two services use this name",
			name, hostOf(p.By), p.Topic, hostOf(p.ReadBy))
	}
	s.paused(name, l.Pauses)
	if l.Paused && len(l.Pauses) == 0 {
		s.problem("%s: is paused", name)
	}
}

// untried is how long a parked message of a consumer may be due: a running process tries it within seconds.
const untried = 10 * time.Minute

func (s *status) judgeConsumer(c admin.ConsumerStatus, dead int64) {
	name := "consumer " + c.Consumer
	if dead >= 0 && c.Dead.N > dead {
		s.broke("%s: %s, more than %s; the latest: %s", name, countText(c.Dead, "dead letter"), commas(dead),
			errtext.Short(c.DeadError))
	} else if some(c.Dead) {
		s.problem("%s: %s; the latest: %s", name, countText(c.Dead, "dead letter"), errtext.Short(c.DeadError))
	}
	switch {
	case c.Overdue >= untried:
		s.problem("%s: nobody tries %s, and one is due for %s", name, countText(c.Parked, "parked message"),
			ageText(c.Overdue))
	case some(c.Parked):
		s.problem("%s: the oldest parked message has failed %s: %s", name, times(c.Attempts), errtext.Short(c.Error))
	}
}

// judgeDestinations notes the destinations that rest, each once per process.
func (s *status) judgeDestinations() {
	seen := make(map[string]bool)
	visit := func(processes []admin.Process) {
		for _, p := range processes {
			for _, name := range slices.Sorted(maps.Keys(p.Resting)) {
				_, topic := p.Topics[name]
				_, short := p.Topics[p.Name+"/"+name]
				key := p.WorkerID.String() + name
				if !topic && !short && !seen[key] {
					seen[key] = true
					s.problem("destination %s: rests in %s, because it is unavailable: %s", name, hostOf(p),
						errtext.Short(p.Resting[name]))
				}
			}
		}
	}
	for _, t := range s.Topics {
		visit(t.Processes)
	}
	for _, l := range s.Listeners {
		visit(l.Processes)
	}
}

func (s *status) paused(name string, pauses []admin.Pause) {
	for _, p := range pauses {
		what := "is paused"
		if p.TenantID.Valid {
			what = "tenant " + p.TenantID.UUID.String() + " is paused"
		}
		text := fmt.Sprintf("%s: %s by %s since %s", name, what, brief(p.Who), p.Since.UTC().Format(time.RFC3339))
		if !p.Until.IsZero() {
			text += " until " + p.Until.UTC().Format(time.RFC3339)
		}
		if p.Why != "" {
			text += ": " + brief(p.Why)
		}
		s.problem("%s", text)
	}
}

func (a *app) printStatus(s *status) error {
	if len(s.Topics) == 0 && len(s.Listeners) == 0 && len(s.Consumers) == 0 {
		return a.printf("no topic has events, no process runs, and no listener is attached\n")
	}
	topics := [][]any{{"TOPIC", "DUE", "RETRYING", "SCHEDULED", "IN FLIGHT", "DEAD", "OLDEST", "RATE", "RUN BY"}}
	for _, t := range s.Topics {
		inFlight := t.InFlight
		inFlight.N += t.Expired.N
		topics = append(topics, []any{
			t.Name(), t.Due, t.Retrying, t.Scheduled, inFlight, t.Dead, oldestText(t.Oldest),
			rateText(t.DeliveredPerSecond), runBy(t.Processes),
		})
	}
	listeners := [][]any{{"LISTENER", "SHARDS", "STATE", "UNREAD", "PARKED", "DEAD", "OLDEST", "RUN BY"}}
	for _, l := range s.Listeners {
		listeners = append(listeners, []any{
			l.Listener, l.Shards, l.State, commas(l.Unread), commas(l.ParkedEvents), commas(l.DeadLetters),
			oldestText(l.Lag), runBy(l.Processes),
		})
	}
	consumers := [][]any{{"CONSUMER", "PARKED", "DEAD", "OLDEST"}}
	for _, c := range s.Consumers {
		consumers = append(consumers, []any{c.Consumer, c.Parked, c.Dead, oldestText(c.Oldest)})
	}
	err := a.printTables(topics, listeners, consumers)
	if len(s.Problems) > 0 {
		return a.printf("\n%s\n", strings.Join(s.Problems, "\n"))
	}
	return err
}

func some(c admin.Count) bool { return c.N > 0 }

func commas(n int64) string { return admin.Count{N: n}.String() }

// countText is count with commas: "1 dead letter", "more than 100,000 dead letters".
func countText(c admin.Count, thing string) string {
	if c.N == 1 && !c.More {
		return "1 " + thing
	}
	return c.String() + " " + thing + "s"
}

// are returns "1 event is" or "12 events are".
func are(due, expired admin.Count) string {
	sum := admin.Count{N: due.N + expired.N, More: due.More || expired.More}
	if sum.N == 1 && !sum.More {
		return "1 event is"
	}
	return countText(sum, "event") + " are"
}

func has(c admin.Count) string {
	if c.N == 1 && !c.More {
		return "1 event has"
	}
	return countText(c, "event") + " have"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return commas(int64(n)) + " times"
}

func oldestText(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return ageText(d)
}

// rateText is events per second with two significant digits, so that a slow rate is not 0.
func rateText(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "-"
	case perSecond >= 10:
		return commas(int64(math.Round(perSecond))) + "/s"
	case perSecond < 0.01:
		return "<0.01/s"
	}
	return strconv.FormatFloat(perSecond, 'g', 2, 64) + "/s"
}

// runBy names one process, or says how many there are.
func runBy(processes []admin.Process) string {
	switch len(processes) {
	case 0:
		return "nobody"
	case 1:
		return hostOf(processes[0])
	}
	return fmt.Sprintf("%d processes", len(processes))
}

// hostOf says where a process runs.
func hostOf(p admin.Process) string { return fmt.Sprintf("%s:%d", brief(p.Host), p.PID) }

func processOf(processes []admin.Process, r admin.Resting) string {
	for _, p := range processes {
		if p.WorkerID == r.WorkerID {
			return hostOf(p)
		}
	}
	return r.WorkerID.String()
}
