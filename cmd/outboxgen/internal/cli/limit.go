package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/outbox"
)

func (a *app) limitCommand() *cobra.Command {
	var db database
	c := group("limit", "Show the limits of topics, what is used of them, and change them",
		`limit shows and changes the limits of queue topics: how many events of a key are handled at once, and how many
attempts start in a period. A limit is declared in outbox.yaml. An operator can set another value for a while,
without a deployment. A limit that is not declared cannot be set, because its events have no keys. set and reset
show what they would do, and do it with --yes.`,
		a.limitList(&db), a.limitSet(&db), a.limitReset(&db))
	db.flags(c)
	return c
}

// limitArg returns the namespace and the topic of an argument.
func limitArg(text string) (s admin.LimitScope, err error) {
	s.Namespace, s.Topic, _ = strings.Cut(text, "/")
	if s.Namespace == "" || s.Topic == "" {
		return s, fmt.Errorf("%q is not a valid topic: use a name like mini_chat/turn_finalized", text)
	}
	return s, nil
}

// shownKeys is how many keys of a limit list prints.
const shownKeys = 20

func (a *app) limitList(db *database) *cobra.Command {
	var scope admin.LimitScope
	c := &cobra.Command{
		Use:   "list [TOPIC]",
		Short: "List the limits, how much of them is used and what waits at them",
		Long: `list prints the limits of all topics. With a TOPIC it also prints the keys that are in use, those first of
which most waits.

PER       which events share it: "-" all of the topic, tenant, destination or a template of fields
ALLOWED   what is in force in all processes
YAML      what the process has declared that started last, if an operator has set something else
UNTIL     when what was set ends by itself; "reset" means with limit reset
USED      of the key that uses most: how many events are claimed, or attempts have started in the period
FULL      keys of which no event may start now, out of the keys in use
WAITING   events that are due and wait at this limit; one that waits at two limits counts at both
OLDEST    how long the first of them has been due

Of each limit up to 10,000 keys are read, and of each topic the oldest 10,000 due events.`,
		Example: `  outboxgen limit list
  outboxgen limit list mini_chat/turn_finalized`,
		Args: cobra.MaximumNArgs(1),
	}
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if len(args) > 0 {
			scope, err = limitArg(args[0])
		}
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		all, err := readLimits(ctx, ops)
		if err != nil {
			return err
		}
		limits := slices.DeleteFunc(slices.Clone(all), func(l limitView) bool {
			return scope.Topic != "" && (l.Namespace != scope.Namespace || l.Topic != scope.Topic)
		})
		if a.json {
			return a.printJSON(struct {
				Limits []limitView `json:"limits"`
			}{limits})
		}
		if len(limits) == 0 {
			text := "no topic has limits"
			if scope.Topic != "" {
				text = scope.String() + " has no limits"
			}
			if len(all) > 0 {
				var names []string
				for _, l := range all {
					names = append(names, l.LimitScope.String())
				}
				text += "; limits are: " + strings.Join(names, "; ")
			}
			a.notef("%s", text)
			return nil
		}
		tables := [][][]any{limitTable(limits)}
		if scope.Topic != "" {
			for _, l := range limits {
				tables = append(tables, keyTable(l))
			}
		}
		return a.printTables(tables...)
	})
	return c
}

// limitView is a limit, what is used of it and what waits at it, as commands show it.
type limitView struct {
	admin.LimitScope
	Value    admin.LimitValue    `json:"value"`
	Declared admin.LimitValue    `json:"declared"`
	Set      *admin.LimitSetting `json:"set,omitempty"`
	// Running and Starts are those of the key that has most.
	Running   int64       `json:"running"`
	Starts    int64       `json:"starts"`
	KeysInUse int         `json:"keys_in_use"`
	KeysFull  int         `json:"keys_full"`
	Waiting   admin.Count `json:"waiting"`
	Longest   float64     `json:"longest_seconds,omitempty"` // how long the first that waits has been due

	Keys    []admin.LimitUse `json:"keys,omitempty"`
	Partial bool             `json:"partial,omitempty"`
}

// readLimits returns the limits of all topics and what waits at them.
func readLimits(ctx context.Context, ops *admin.Admin) ([]limitView, error) {
	limits, err := ops.Limits(ctx)
	if err != nil || len(limits) == 0 {
		return []limitView{}, err
	}
	waits, err := ops.LimitWaits(ctx)
	views := make([]limitView, len(limits))
	for i, l := range limits {
		full, _ := l.Full()
		v := limitView{
			LimitScope: l.LimitScope, Value: l.Value, Declared: l.Declared, Set: l.Set, KeysInUse: len(l.Keys),
			KeysFull: len(full), Keys: l.Keys, Partial: l.Partial,
		}
		for _, k := range l.Keys {
			v.Running, v.Starts = max(v.Running, k.Running), max(v.Starts, k.Starts)
		}
		for _, w := range waits {
			if w.LimitScope == l.LimitScope {
				v.Waiting, v.Longest = w.Waiting, w.Longest.Seconds()
			}
		}
		views[i] = v
	}
	return views, err
}

// of reports whether it is a limit of t.
func (l limitView) of(t admin.TopicStatus) bool {
	return l.Namespace == t.Namespace && l.Topic == t.Topic
}

// oldest says how long the first event that waits has been due.
func (l limitView) oldest() string {
	return oldestText(time.Duration(l.Longest * float64(time.Second)))
}

func limitTable(limits []limitView) [][]any {
	table := [][]any{{"TOPIC", "PER", "ALLOWED", "YAML", "SET BY", "UNTIL", "USED", "FULL", "WAITING", "OLDEST"}}
	for _, l := range limits {
		yaml, by, until := "-", "-", "-"
		if l.Set != nil {
			yaml, by, until = l.Declared.String(), brief(l.Set.Who), "reset"
			if !l.Set.Until.IsZero() {
				until = second(l.Set.Until)
			}
		}
		table = append(table, []any{
			l.Namespace + "/" + l.Topic, dash(l.Per), l.Value, yaml, by, until, usesText(l.Value, l.Running, l.Starts),
			fmt.Sprintf("%d of %d", l.KeysFull, l.KeysInUse), l.Waiting, l.oldest(),
		})
	}
	return table
}

// usesText says what is used of a key: "2 of 5 run, 7 of 10 started".
func usesText(v admin.LimitValue, running, starts int64) string {
	var parts []string
	if v.Concurrency > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d run", running, v.Concurrency))
	}
	if v.Rate.Events > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d started", starts, v.Rate.Events))
	}
	return strings.Join(parts, ", ")
}

// keyTable is about the keys of a limit that has several.
func keyTable(l limitView) [][]any {
	if l.Per == "" {
		return nil
	}
	table := [][]any{{"KEY PER " + strings.ToUpper(l.Per), "USED", "NEXT START", "DUE", "OLDEST"}}
	for i, k := range l.Keys {
		if i == shownKeys {
			table = append(table, []any{fmt.Sprintf("and %d more: --json has them", len(l.Keys)-i), "", "", "", ""})
			break
		}
		next, oldest := "now", "-"
		switch {
		case !k.FreeAt.IsZero():
			next = second(k.FreeAt)
		case k.Full:
			next = "when one ends"
		}
		if !k.Oldest.IsZero() {
			oldest = ageText(max(time.Since(k.Oldest), 0))
		}
		table = append(table, []any{brief(k.Key), usesText(l.Value, k.Running, k.Starts), next, commas(k.Waiting), oldest})
	}
	return table
}

// limitFlags are the flags of set and reset.
type limitFlags struct {
	scope  admin.LimitScope
	person personFlags
	yes    bool
}

func (f *limitFlags) flags(c *cobra.Command, per string) {
	c.Flags().StringVar(&f.scope.Per, "per", "", per)
	c.Flags().BoolVar(&f.yes, "yes", false, "apply the change")
	f.person.flags(c)
}

func (f *limitFlags) parse(arg string) error {
	s, err := limitArg(arg)
	f.scope.Namespace, f.scope.Topic = s.Namespace, s.Topic
	return err
}

func (a *app) limitSet(db *database) *cobra.Command {
	var f limitFlags
	var value admin.LimitValue
	var rate, until string
	act := admin.Act{}
	c := &cobra.Command{
		Use:   "set TOPIC",
		Short: "Set what a limit allows, in place of what outbox.yaml says",
		Long: `set changes what a limit of a topic allows, in all processes at once: claims read it in the database. What is
not given stays as it is. It holds until reset, or until the time of --until, also for processes that start then.

If the new value is below what runs, nothing is cancelled, and nothing starts until less runs. Events that wait
are not charged an attempt. To stop a topic, pause it. Without --yes set only shows what it would change.`,
		Example: `  outboxgen limit set mini_chat/turn_finalized --concurrency 2 --until 2h --reason "billing is slow" --yes
  outboxgen limit set mini_chat/turn_finalized --per tenant --rate 10/1m --yes`,
		Args: cobra.ExactArgs(1),
	}
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		n := value.Concurrency
		switch {
		case !c.Flags().Changed("concurrency") && !c.Flags().Changed("rate"):
			return errors.New("nothing is set: give --concurrency, --rate or both")
		case c.Flags().Changed("concurrency") && (n < 1 || n > math.MaxInt32):
			return fmt.Errorf("--concurrency: %d is not between 1 and %d; to stop the topic, pause it", n, math.MaxInt32)
		}
		if c.Flags().Changed("rate") {
			if value.Rate, err = outbox.ParseRate(rate); err != nil {
				return fmt.Errorf("--rate: %w", err)
			}
		}
		if until != "" {
			if act.Until, err = parseUntil(until, time.Now()); err != nil {
				return err
			}
		}
		return f.parse(args[0])
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		act.DryRun = !f.yes
		r, err := f.person.as(ops).SetLimit(ctx, f.scope, value, act)
		if err != nil {
			return asUsage(err)
		}
		end := ""
		if !act.Until.IsZero() {
			end = " until " + act.Until.UTC().Format(time.RFC3339)
		}
		return a.printLimits(f.yes, "set", end, r)
	})
	f.flags(c, "which limit of the topic, by its `key` as in outbox.yaml: tenant, destination or a template (default: "+
		"that of the whole topic)")
	c.Flags().IntVar(&value.Concurrency, "concurrency", 0, "how many events of a key may be claimed at any moment, a `number`")
	c.Flags().StringVar(&rate, "rate", "", "how many attempts of a key may start in a period, as `N/P`, for example 10/1m")
	c.Flags().StringVar(&until, "until", "",
		"`when` it ends by itself: a duration like 2h, or a time like 2026-05-01T12:00:00Z (default: never)")
	return c
}

func (a *app) limitReset(db *database) *cobra.Command {
	var f limitFlags
	c := &cobra.Command{
		Use:   "reset TOPIC",
		Short: "End what was set, so that outbox.yaml decides again",
		Long: `reset ends what set has set, of all limits of a topic or, with --per, of one. In force is then what the process
has declared that started last. Resetting what nobody has set changes nothing and is not an error. Without --yes
reset only shows what it would change.`,
		Example: `  outboxgen limit reset mini_chat/turn_finalized --yes
  outboxgen limit reset mini_chat/turn_finalized --per tenant --yes`,
		Args: cobra.ExactArgs(1),
	}
	c.PreRunE = func(_ *cobra.Command, args []string) error { return f.parse(args[0]) }
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		r, err := f.person.as(ops).ResetLimit(ctx, f.scope, !c.Flags().Changed("per"), admin.Act{DryRun: !f.yes})
		if err != nil {
			return asUsage(err)
		}
		if len(r.Changed) == 0 && !a.json {
			return a.printf("nobody has set a limit of %s: nothing to reset\n", f.scope)
		}
		return a.printLimits(f.yes, "reset", "", r)
	})
	f.flags(c,
		"only this limit of the topic, by its `key` as in outbox.yaml; '' is that of the whole topic (default: all)")
	return c
}

// printLimits prints what an act has done to limits, or would do. end continues what they allow now.
func (a *app) printLimits(yes bool, verb, end string, r admin.LimitReport) error {
	done := verb
	if len(r.Changed) > 0 {
		done = a.verb(yes, verb, verb)
	}
	for _, c := range r.Changed {
		switch {
		case c.Over == 0:
		case c.Per == "":
			a.notef("%s: more runs than that: nothing is cancelled, and nothing starts until less runs", c.LimitScope)
		default:
			a.notef("%s: more runs than that of %s: nothing is cancelled, and nothing of them starts until less runs",
				c.LimitScope, count(c.Over, "key"))
		}
	}
	if a.json {
		return a.printJSON(doneRow{yes && len(r.Changed) > 0}, r)
	}
	var err error
	for _, c := range r.Changed {
		err = a.printf("%s %s to %s%s; it was %s\n", done, c.LimitScope, c.After, end, c.Before)
	}
	return err
}
