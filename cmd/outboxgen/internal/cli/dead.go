package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

func (a *app) deadCommand() *cobra.Command {
	var db database
	c := group("dead", "Inspect dead letters, replay and discard them",
		`dead shows the events that were given up: by the dispatchers of a queue topic or by a listener, which may also have
been told to skip them. It gives them back to those who gave them up, or deletes them. It needs neither handlers nor
their processes, which may keep running.`,
		a.deadList(&db), a.deadGroups(&db), a.deadParked(&db), a.deadShow(&db), a.deadReplay(&db), a.deadDiscard(&db),
		a.deadExport(&db))
	db.flags(c)
	return c
}

// deadFlags select dead letters.
type deadFlags struct {
	filterFlags
	consumer, group string
	all             bool
}

// flags adds the flags to c. act is set for a command that changes what it selects: it wants a selection.
func (f *deadFlags) flags(c *cobra.Command, act bool) {
	f.filterFlags.flags(c)
	c.Flags().StringVar(&f.consumer, "consumer", "",
		"only messages that this consumer `group` could not apply; without it none of them")
	c.Flags().StringVar(&f.group, "group", "", "only dead letters of this `group`, as dead groups shows it")
	if act {
		c.Flags().BoolVar(&f.all, "all", false, "select all dead letters; needed if nothing else selects")
	}
}

// topicArgs accepts at most one topic.
var topicArgs = cobra.MaximumNArgs(1)

// groupID is the form of the ID of an admin.DeadGroup.
var groupID = regexp.MustCompile(`^[0-9a-f]{12}$`)

// filter returns the filter of the flags and of the arguments, which are a topic or a namespace.
func (f *deadFlags) filter(args []string, now time.Time) (admin.Filter, error) {
	r, err := f.filterFlags.filter(now)
	if err != nil {
		return r, err
	}
	r.Consumer, r.Group = f.consumer, f.group
	if len(args) > 0 {
		r.Namespace, r.Topic, _ = strings.Cut(args[0], "/")
		if r.Namespace == "" || strings.HasSuffix(args[0], "/") {
			return r, fmt.Errorf("%q is not a valid topic: use a name like mini_chat/turn_finalized, or a namespace", args[0])
		}
	}
	if f.group != "" && !groupID.MatchString(f.group) {
		return r, fmt.Errorf("--group: %q is not a valid group: use the 12 letters and digits that dead groups shows",
			f.group)
	}
	if f.consumer != "" && f.listener != "" {
		return r, errors.New("--consumer and --listener cannot be used together")
	}
	return r, nil
}

// selective is filter for a command that changes what it selects.
func (f *deadFlags) selective(args []string, now time.Time) (admin.Filter, error) {
	r, err := f.filter(args, now)
	narrow := len(args) > 0 || len(f.ids) > 0 || f.listener != "" || !f.onlyIDAndListener()
	switch {
	case err != nil:
		return r, err
	case !narrow && !f.all:
		return r, errors.New(
			"nothing is selected: name a topic, use --id, --listener, --consumer, --tenant, --key, --since, " +
				"--until, --error or --group, or --all")
	case narrow && f.all:
		return r, errors.New("--all selects everything: leave it out to select less")
	}
	return r, nil
}

// onlyIDAndListener reports whether no flag selects except --id and --listener.
func (f *deadFlags) onlyIDAndListener() bool {
	return f.consumer+f.tenant+f.key+f.since+f.until+f.text+f.group == ""
}

// actFlags say who acts and why, and how much of it.
type actFlags struct {
	personFlags
	limit int
	rate  float64
	yes   bool
}

func (f *actFlags) flags(c *cobra.Command) {
	f.personFlags.flags(c)
	c.Flags().IntVar(&f.limit, "limit", 0, "change at most `n` dead letters, the oldest first; 0 means all")
	c.Flags().Float64Var(&f.rate, "rate", 0, "change at most `n` dead letters per second; 0 means as many as possible")
	c.Flags().BoolVar(&f.yes, "yes", false, "apply the change")
}

// act returns the Act of the flags.
func (f *actFlags) act() (admin.Act, error) {
	switch {
	case f.limit < 0:
		return admin.Act{}, fmt.Errorf("--limit: %d must not be negative", f.limit)
	case !(f.rate >= 0) || f.rate > 1e9: // NaN too
		return admin.Act{}, fmt.Errorf("--rate: %v must be a number of dead letters per second", f.rate)
	}
	who := f.who
	if who == "" {
		who = defaultWho()
	}
	return admin.Act{Who: who, Why: f.why, DryRun: !f.yes, Limit: f.limit, Rate: f.rate}, nil
}

func (a *app) deadGroups(db *database) *cobra.Command {
	var f deadFlags
	c := &cobra.Command{
		Use:   "groups [TOPIC]",
		Short: "Group the dead letters by topic, listener and error",
		Long: `groups shows how many dead letters there are for each topic, listener and kind of error, the most first.
Errors that differ only in numbers, ids, hex strings, times, addresses and quoted values are one kind. ERROR is the
latest one. --group of the other commands selects a group. It stays the same as long as the text of the error does.`,
		Example: `  outboxgen dead groups
  outboxgen dead groups mini_chat/turn_finalized --since 2h
  outboxgen dead replay --group 5f0c1d2e3a4b --yes`,
		Args: topicArgs,
	}
	var filter admin.Filter
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		filter, err = f.filter(args, time.Now())
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		groups, err := ops.DeadGroups(ctx, filter)
		if err == nil && len(groups) == 0 {
			err = a.checkNames(ctx, ops, filter)
		}
		if err != nil {
			return err
		}
		table := [][]any{{"GROUP", "COUNT", "TOPIC", "LISTENER", "TENANTS", "FIRST DIED", "LAST DIED", "ERROR"}}
		for _, g := range groups {
			tenants := fmt.Sprint(g.Tenants)
			if g.Tenants == admin.MaxGroupTenants {
				tenants += "+"
			}
			table = append(table, []any{
				g.ID, g.Count, g.Name(), dash(g.Listener + g.Consumer), tenants, second(g.FirstDiedAt), second(g.LastDiedAt),
				dash(errtext.Short(g.Error)),
			})
		}
		if filter.Consumer != "" {
			table[0][3] = "CONSUMER"
		}
		err = a.printList(struct {
			Groups []admin.DeadGroup `json:"groups"`
		}{groups}, table, "no dead letters")
		return errors.Join(err, a.noteConsumers(ctx, ops, filter))
	})
	f.flags(c, false)
	return c
}

// noteConsumers says which consumer groups have dead letters, if filter could select them and does not name one.
func (a *app) noteConsumers(ctx context.Context, ops *admin.Admin, filter admin.Filter) error {
	if filter.Listener+filter.Consumer != "" {
		return nil
	}
	groups, err := ops.DeadConsumers(ctx)
	if err == nil && len(groups) > 0 {
		a.notef("consumer groups have dead letters too: use --consumer with %s", strings.Join(groups, " or "))
	}
	return err
}

// noteOthers is for an act that has found nothing. Besides what checkNames says, it says which consumer groups have
// what was selected, if filter does not name one.
func (a *app) noteOthers(ctx context.Context, ops *admin.Admin, filter admin.Filter) error {
	if err := a.checkNames(ctx, ops, filter); err != nil || filter.Consumer != "" {
		return err
	}
	if len(filter.IDs) == 0 {
		return a.noteConsumers(ctx, ops, filter)
	}
	groups, err := groupsWith(ctx, ops, filter.IDs)
	if err == nil && len(groups) > 0 {
		a.notef("--id selects no dead letter%s, but one of a consumer: use --consumer %s", ofWhom(filter.Listener, ""),
			strings.Join(groups, " or --consumer "))
	}
	return err
}

// groupsWith returns the consumer groups that have one of ids as a dead letter.
func groupsWith(ctx context.Context, ops *admin.Admin, ids []uuid.UUID) (have []string, err error) {
	groups, err := ops.DeadConsumers(ctx)
	for _, group := range groups {
		letters, err := ops.DeadLetters(ctx, admin.Filter{IDs: ids, Consumer: group}, 0, 1)
		if err != nil {
			return nil, err
		}
		if len(letters) > 0 {
			have = append(have, group)
		}
	}
	return have, err
}

// ofWhom says whose dead letters a command has looked for.
func ofWhom(listener, consumer string) string {
	switch {
	case listener != "":
		return " of listener " + listener
	case consumer != "":
		return " of consumer " + consumer
	default:
		return " of a topic or listener"
	}
}

// unknownGroup says that nothing is known of a consumer group.
type unknownGroup struct {
	name  string
	known []string
}

func (e *unknownGroup) Error() string {
	if len(e.known) == 0 {
		return fmt.Sprintf("no consumer group %s: no group has recorded an event there", e.name)
	}
	return fmt.Sprintf("no consumer group %s; known: %s", e.name, strings.Join(e.known, ", "))
}

// checkConsumer returns an unknownGroup if nothing is known of the consumer group that was named. It is for a command
// that has found nothing.
func checkConsumer(ctx context.Context, ops *admin.Admin, name string) error {
	if name == "" {
		return nil
	}
	known, err := ops.ConsumerGroups(ctx)
	if err == nil && !slices.Contains(known, name) {
		err = &unknownGroup{name, known}
	}
	return err
}

// checkNames is for a command that has found nothing. It returns an unknownGroup for a consumer group of which nothing
// is known. For a topic or listener it notes that, and is not an error: retention deletes what a name was known by.
func (a *app) checkNames(ctx context.Context, ops *admin.Admin, filter admin.Filter) error {
	if filter.Consumer != "" {
		return checkConsumer(ctx, ops, filter.Consumer)
	}
	if filter.Namespace == "" && filter.Listener == "" {
		return nil
	}
	o, err := ops.Overview(ctx)
	if err != nil {
		return err
	}
	var topics, listeners []string
	for _, t := range o.Topics {
		topics = append(topics, t.Name())
	}
	for _, t := range o.LogTopics {
		topics = append(topics, t.Name())
	}
	for _, l := range admin.SumShards(o.Listeners) {
		listeners = append(listeners, l.Listener)
	}
	named := func(topic string) bool {
		return topic == filter.Namespace+"/"+filter.Topic ||
			filter.Topic == "" && strings.HasPrefix(topic, filter.Namespace+"/")
	}
	switch {
	case filter.Topic != "" && !slices.ContainsFunc(topics, named):
		a.notef("topic %s/%s is not known: no event of it is kept, and no process runs it; known: %s", filter.Namespace,
			filter.Topic, namesText(topics))
	case filter.Namespace != "" && !slices.ContainsFunc(topics, named):
		a.notef("namespace %s is not known: no event of it is kept, and no process runs it; known: %s", filter.Namespace,
			namesText(topics))
	}
	if filter.Listener != "" && !slices.Contains(listeners, filter.Listener) {
		a.notef("listener %s is not attached; attached: %s", filter.Listener, namesText(listeners))
	}
	return nil
}

func namesText(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// second formats a time for a table.
func second(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// printAct prints what an act did. err is the error with which it ended.
func (a *app) printAct(yes bool, done, undone string, r admin.Report, err error) error {
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%s: interrupted: run the command again to continue", undone)
	}
	if err != nil && r.Done == 0 {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		a.notef("not %s: %s: %s", done, count(int(r.Refused[reason]), "dead letter"), reason)
	}
	if r.Refused == nil {
		r.Refused = map[string]int64{}
	}
	n := r.Done
	text := a.verb(yes, done, undone)
	if !yes {
		n = r.Matched
	}
	var printed error
	switch rest := r.Matched - r.Done; {
	case a.json:
		printed = a.printJSON(doneRow{yes && err == nil}, r)
	case yes && rest > 0:
		printed = a.printf("%s %d of %s\n", text, n, count(int(r.Matched), "dead letter"))
	default:
		printed = a.printf("%s %s\n", text, count(int(n), "dead letter"))
	}
	return errors.Join(err, printed)
}

func (a *app) deadReplay(db *database) *cobra.Command {
	var f deadFlags
	var act actFlags
	var edit string
	c := &cobra.Command{
		Use:   "replay [TOPIC]",
		Short: "Give dead letters back to those who gave them up",
		Long: `replay puts dead letters of queue topics back into the queue, due now and with all their attempts, and
hands dead letters of a listener to that listener alone, in the order of their key. An event keeps its id. Replays may
run at the same time: one of them puts an event back. A process that still believes to hold the event can no longer
settle it.

Without --yes replay only shows how many dead letters it would take. It works in chunks. After Ctrl-C it finishes a
chunk and says how many are done. outboxgen audit shows who replayed what.

With --edit the payload of one dead letter is replaced. It must fit the topic in outbox.yaml, and the fields of its keys
must stay as they were. Other listeners of the event and the log keep the old payload.`,
		Example: `  outboxgen dead replay --consumer cards --error 'no such tenant' --yes
  outboxgen dead replay mini_chat/turn_finalized --error 'connection refused' --yes
  outboxgen dead replay --listener companion --rate 100 --reason 'search is back' --yes
  outboxgen dead replay --id 0190a5c2-7b1e-7c00-8000-0123456789ab --edit fixed.json --yes`,
		Args: topicArgs,
	}
	var filter admin.Filter
	var doing admin.Act
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if filter, err = f.selective(args, time.Now()); err != nil {
			return err
		}
		if edit != "" && (len(filter.IDs) != 1 || len(args) > 0 || !f.onlyIDAndListener()) {
			return errors.New("--edit: name the dead letter with one --id, and with --listener if a listener gave it up; " +
				"nothing else may select")
		}
		doing, err = act.act()
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		if edit != "" {
			r, err := a.replayEdited(ctx, ops, db, filter, edit, doing)
			if errors.Is(err, errReported) {
				return err
			}
			return a.printAct(act.yes, "replayed", "replay", r, err)
		}
		r, err := ops.WithProgress(a.progress("replay")).Replay(ctx, filter, doing)
		if err == nil && r.Matched == 0 {
			err = a.noteOthers(ctx, ops, filter)
		}
		return a.printAct(act.yes, "replayed", "replay", r, err)
	})
	f.flags(c, true)
	act.flags(c)
	c.Flags().StringVar(&edit, "edit", "", "JSON `file` with the new payload of the one dead letter")
	_ = c.MarkFlagFilename("edit", "json") // fails only for an undefined flag
	return c
}

func (a *app) deadDiscard(db *database) *cobra.Command {
	var f deadFlags
	var act actFlags
	c := &cobra.Command{
		Use:   "discard [TOPIC]",
		Short: "Delete dead letters permanently",
		Long: `discard deletes dead letters that nobody needs any more. It needs a --reason, which outboxgen audit
shows. Export them before: they cannot be restored. An event of a queue topic is deleted with its dedupe key, so an
event with the same key can be enqueued again. An event of a log topic stays in the log for its retention.

Without --yes discard only shows how many dead letters it would delete.`,
		Example: `  outboxgen dead export --group 5f0c1d2e3a4b --payload > discarded.jsonl
  outboxgen dead discard --group 5f0c1d2e3a4b --reason 'test data of May' --yes`,
		Args: topicArgs,
	}
	var filter admin.Filter
	var doing admin.Act
	c.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if filter, err = f.selective(args, time.Now()); err != nil {
			return err
		}
		if act.why == "" {
			return errors.New("--reason is missing: say why the events may be lost")
		}
		doing, err = act.act()
		return err
	}
	c.RunE = a.administer(db, func(ctx context.Context, ops *admin.Admin, _ []string) error {
		r, err := ops.WithProgress(a.progress("discard")).Discard(ctx, filter, doing)
		if err == nil && r.Matched == 0 {
			err = a.noteOthers(ctx, ops, filter)
		}
		return a.printAct(act.yes, "discarded", "discard", r, err)
	})
	f.flags(c, true)
	act.flags(c)
	return c
}
