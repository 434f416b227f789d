package dashboard

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/admin"
)

// act is something that an operator does. GET shows what it would do, and POST does it.
type act struct {
	name, title string
	danger      bool // it cannot be undone
	needsWhy    bool
	fields      []string // parameters that say to what it is done; they are hidden in the form
	inputs      []input  // what is asked before the preview
	extras      []input  // what is asked with the confirmation
	// preview says what would be done now. It fails if nothing can be.
	preview func(ctx context.Context, form url.Values) (preview, error)
	do      func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error)
	// done says what was done.
	done func(result) string
	// back is where somebody is led afterwards, or who cancels, as a path. If after is set, it leads there afterwards.
	back, after func(form url.Values) string
}

// result is what an act has done. It travels in the address to which somebody is led afterwards.
type result struct {
	N, Of   int64 // events that were changed, of those that were selected
	Refused int64
	Why     []string // the reasons of the refusals, some of refusals
	Others  int64    // other pauses that still cover what was resumed
}

// refusals are the reasons that an address can name.
var refusals = []string{admin.RefusedKeyTaken, admin.RefusedNoPayload, admin.RefusedDetached}

// query returns r as parameters.
func (r result) query(act string) url.Values {
	q := url.Values{"did": {act}}
	for name, n := range map[string]int64{"n": r.N, "of": r.Of, "refused": r.Refused, "others": r.Others} {
		if n > 0 {
			q.Set(name, strconv.FormatInt(n, 10))
		}
	}
	for i, why := range refusals {
		if slices.Contains(r.Why, why) {
			q.Add("because", strconv.Itoa(i))
		}
	}
	return q
}

// resultOf reads what query has written. Anybody can make an address, so it takes numbers only.
func resultOf(q url.Values) result {
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0
		}
		return max(n, 0)
	}
	r := result{N: number(q.Get("n")), Of: number(q.Get("of")), Refused: number(q.Get("refused")), Others: number(q.Get("others"))}
	for i, why := range refusals {
		if slices.Contains(q["because"], strconv.Itoa(i)) {
			r.Why = append(r.Why, why)
		}
	}
	return r
}

// input is a field of a form.
type input struct {
	Name, Label, Hint string
	Value             string
}

// preview is what an act would do.
type preview struct {
	What  string // a sentence
	Means string // what follows from it
	Count int64  // events; it is sent back with the confirmation
	Verb  string // the text of the button
	None  bool   // there is nothing to do
}

func (p *Page) listActs() []act {
	return []act{
		{
			name: "replay", title: "Replay dead letters", fields: filterFields,
			preview: p.previewDead("Replay", "They are delivered again: those of a queue topic by its dispatchers, those of a listener by that listener alone.",
				"They are parked again, each before the later messages of its key. A running process of the consumer tries them immediately."),
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				return doDead(ctx, form, ops.Replay)
			},
			done: func(r result) string { return r.changed("replayed") },
			back: p.deadPage,
		},
		{
			name: "discard", title: "Discard dead letters", fields: filterFields, danger: true, needsWhy: true,
			preview: p.previewDead("Discard", "They are deleted and can never be delivered. Events of log topics stay in the log.",
				"They are deleted, and the consumer never applies them, unless their broker delivers them again."),
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				return doDead(ctx, form, ops.Discard)
			},
			done: func(r result) string { return r.changed("discarded") },
			back: p.deadPage,
			// The page of a discarded event of a queue topic is not there any more.
			after: func(form url.Values) string {
				if path, ok := p.consumerPage(form); ok {
					return path
				}
				return p.view.path("dead")
			},
		},
		{
			name: "pause", title: "Pause", fields: scopeFields,
			extras:  []input{{Name: "until", Label: "Until", Hint: "A duration like 2h, or a time like 2026-05-01 12:00 (UTC). Empty means until somebody resumes it."}},
			preview: p.previewPause,
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				scope, err := scopeOf(form)
				if err != nil {
					return result{}, err
				}
				until, err := untilOf(form.Get("until"))
				if err != nil {
					return result{}, err
				}
				return result{}, ops.Pause(ctx, scope, admin.Act{Until: until})
			},
			done: func(result) string {
				return "Paused. Running processes honour it within one poll interval."
			},
			back: p.scopePage,
		},
		{
			name: "resume", title: "Resume", fields: scopeFields,
			preview: p.previewResume,
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				scope, err := scopeOf(form)
				if err != nil {
					return result{}, err
				}
				report, err := ops.Resume(ctx, scope, admin.Act{})
				return result{Others: int64(len(report.Paused))}, err
			},
			done: func(r result) string {
				if r.Others > 0 {
					return fmt.Sprintf("Resumed. It still waits, because %s it too.", plural(r.Others, "other pause covers", "other pauses cover"))
				}
				return "Resumed."
			},
			back: p.scopePage,
		},
		{
			name: "skip", title: "Skip an event", fields: []string{"listener", "id"}, danger: true, needsWhy: true,
			preview: p.previewSkip,
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				id, err := idOf(form)
				if err != nil {
					return result{}, err
				}
				_, err = ops.Skip(ctx, form.Get("listener"), id)
				return result{N: 1, Of: 1}, err
			},
			done: func(result) string { return "Skipped. The event is a dead letter of the listener now." },
			back: p.listenerPage,
		},
		{
			name: "rewind", title: "Rewind", fields: []string{"listener"}, needsWhy: true,
			inputs:  []input{{Name: "to", Label: "To", Hint: "A time like 2026-05-01 12:00:00 (UTC), an age like 90m, or “earliest” for all events that are still in the log."}},
			preview: p.previewRewind,
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				to, err := rewindTime(form)
				if err != nil {
					return result{}, err
				}
				n, err := ops.Rewind(ctx, form.Get("listener"), to)
				return result{N: n, Of: n}, err
			},
			done: func(r result) string {
				return "Rewound. The listener has " + plural(r.N, "event", "events") + " before it."
			},
			back: p.listenerPage,
		},
		{
			name: "detach", title: "Detach", fields: []string{"listener"}, danger: true, needsWhy: true,
			preview: p.previewDetach,
			do: func(ctx context.Context, ops *admin.Admin, form url.Values) (result, error) {
				report, err := ops.Detach(ctx, form.Get("listener"))
				return result{N: report.Parked, Of: report.Parked}, err
			},
			done: func(result) string { return "Detached. The log is no longer kept for the listener." },
			back: func(url.Values) string { return p.view.path("listeners") },
		},
	}
}

// changed says how many events were changed, and why others were refused.
func (r result) changed(verb string) string {
	text := commas(r.N) + " " + verb + "."
	if r.N != r.Of {
		text = fmt.Sprintf("%s of %s %s.", commas(r.N), commas(r.Of), verb)
	}
	if r.Refused > 0 {
		text += " " + plural(r.Refused, "event was", "events were") + " refused: " + strings.Join(r.Why, "; ") + "."
	}
	return text
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return commas(n) + " " + many
}

// previewDead counts the dead letters that a filter selects. What follows differs for those of consumers.
func (p *Page) previewDead(verb, meansEvents, meansMessages string) func(context.Context, url.Values) (preview, error) {
	return func(ctx context.Context, form url.Values) (preview, error) {
		filter, err := filterOf(form)
		if err != nil {
			return preview{}, err
		}
		report, err := p.ops.Replay(ctx, filter, admin.Act{DryRun: true})
		if err != nil {
			return preview{}, err
		}
		n, means := report.Matched, meansEvents
		if filter.Consumer != "" {
			means = meansMessages
		}
		return preview{
			What:  fmt.Sprintf("%s: %s.", filterText(form), plural(n, "dead letter", "dead letters")),
			Means: means, Count: n, Verb: verb + " " + plural(n, "dead letter", "dead letters"), None: n == 0,
		}, nil
	}
}

// doDead changes at most as many dead letters as the preview counted: those that have died first.
func doDead(
	ctx context.Context, form url.Values, do func(context.Context, admin.Filter, admin.Act) (admin.Report, error),
) (result, error) {
	filter, err := filterOf(form)
	if err != nil {
		return result{}, err
	}
	limit, err := strconv.Atoi(form.Get("count"))
	if err != nil || limit < 1 {
		return result{}, bad("count: the form does not say how many events were shown")
	}
	report, err := do(ctx, filter, admin.Act{Limit: limit})
	r := result{N: report.Done, Of: report.Matched, Why: slices.Collect(maps.Keys(report.Refused))}
	for _, n := range report.Refused {
		r.Refused += n
	}
	return r, err
}

// filterText says in words what a filter selects.
func filterText(form url.Values) string {
	var parts []string
	for _, name := range filterFields {
		if v := form.Get(name); v != "" && name != "status" {
			parts = append(parts, name+" "+shortText(v))
		}
	}
	if len(parts) == 0 {
		return "All topics and listeners"
	}
	return strings.ToUpper(parts[0][:1]) + strings.Join(parts, ", ")[1:]
}

// deadPage is where dead letters are, for the event or for the filter of form.
func (p *Page) deadPage(form url.Values) string {
	if path, ok := p.consumerPage(form); ok {
		return path
	}
	if id := form.Get("id"); id != "" && !strings.ContainsAny(id, ", ") {
		return p.view.path("events", id)
	}
	return p.view.path("dead")
}

// scopeFields are the parameters of a scope.
var scopeFields = []string{"topic", "tenant", "listener"}

func scopeOf(form url.Values) (admin.Scope, error) {
	f, err := filterOf(url.Values{"topic": form["topic"], "tenant": form["tenant"], "listener": form["listener"]})
	s := admin.Scope{Namespace: f.Namespace, Topic: f.Topic, TenantID: f.TenantID, Listener: f.Listener}
	if err == nil && s == (admin.Scope{}) {
		err = bad("a topic, a tenant or a listener is needed")
	}
	return s, err
}

func (p *Page) scopePage(form url.Values) string {
	if listener := form.Get("listener"); listener != "" {
		return p.view.path("listeners", listener)
	}
	if namespace, topic, ok := strings.Cut(form.Get("topic"), "/"); ok {
		return p.view.path("topics", namespace, topic)
	}
	return p.view.path("")
}

func (p *Page) listenerPage(form url.Values) string {
	return p.view.path("listeners", form.Get("listener"))
}

// untilOf reads the end of a pause: a time that is ahead, or a duration.
func untilOf(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return time.Now().Add(d), nil
	}
	t, err := momentOf("until", text)
	if err == nil && !t.IsZero() && !t.After(time.Now()) {
		err = bad("until: %q is over already", text)
	}
	return t, err
}

func (p *Page) previewPause(ctx context.Context, form url.Values) (preview, error) {
	scope, err := scopeOf(form)
	if err != nil {
		return preview{}, err
	}
	if err := p.ops.Preview().Pause(ctx, scope, admin.Act{DryRun: true}); err != nil {
		return preview{}, err
	}
	n := p.waitingIn(ctx, scope)
	return preview{
		What:  fmt.Sprintf("Pause %s, where %s now.", scope, plural(n, "event waits", "events wait")),
		Means: "Nothing is claimed or read, running handlers finish, and no attempt is charged. New events can be enqueued and wait.",
		Count: n, Verb: "Pause " + scope.String(),
	}, nil
}

func (p *Page) previewResume(ctx context.Context, form url.Values) (preview, error) {
	scope, err := scopeOf(form)
	if err != nil {
		return preview{}, err
	}
	report, err := p.ops.Preview().Resume(ctx, scope, admin.Act{DryRun: true})
	if err != nil {
		return preview{}, err
	}
	if !report.Resumed {
		return preview{What: scope.String() + " is not paused itself.", None: true}, nil
	}
	n := p.waitingIn(ctx, scope)
	out := preview{What: fmt.Sprintf("Resume %s, where %s now.", scope, plural(n, "event waits", "events wait")), Count: n, Verb: "Resume " + scope.String()}
	for _, other := range report.Paused {
		out.Means += fmt.Sprintf("It still waits, because %s has paused %s. ", other.Who, other.Scope)
	}
	return out, nil
}

// waitingIn is how many events wait in a scope, by the latest overview. It does not know those of one tenant.
func (p *Page) waitingIn(ctx context.Context, scope admin.Scope) int64 {
	o := p.overview.get(ctx, freshFor, waitFor).value
	var n int64
	for _, t := range o.Topics {
		if scope.Listener == "" && (scope.Namespace == "" || scope.Namespace == t.Namespace) && (scope.Topic == "" || scope.Topic == t.Topic) {
			n += t.Due.N + t.Expired.N
		}
	}
	for _, l := range o.Listeners {
		if l.Listener == scope.Listener {
			n += l.Unread + l.ParkedEvents
		}
	}
	return n
}

func idOf(form url.Values) (uuid.UUID, error) {
	text := strings.TrimSpace(form.Get("id"))
	if text == "" {
		return uuid.Nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return uuid.Nil, bad("id: %q is not a valid UUID", text)
	}
	return id, nil
}

func (p *Page) previewSkip(ctx context.Context, form url.Values) (preview, error) {
	id, err := idOf(form)
	if err != nil {
		return preview{}, err
	}
	e, err := p.ops.Preview().Skip(ctx, form.Get("listener"), id)
	if err != nil {
		return preview{}, err
	}
	form.Set("id", e.ID.String()) // what is confirmed is this event, even if another one is the next by then
	return preview{
		What:  fmt.Sprintf("Skip 1 event: %s of %s/%s, at listener %s.", e.ID, e.Namespace, e.Topic, form.Get("listener")),
		Means: "The listener passes it without handling it. It becomes a dead letter, which can be replayed.",
		Count: 1, Verb: "Skip 1 event",
	}, nil
}

func rewindTime(form url.Values) (time.Time, error) {
	switch text := strings.TrimSpace(form.Get("to")); text {
	case "":
		return time.Time{}, bad("to: say to which time")
	case "earliest":
		return time.Time{}, nil
	default:
		return momentOf("to", text)
	}
}

func (p *Page) previewRewind(ctx context.Context, form url.Values) (preview, error) {
	if strings.TrimSpace(form.Get("to")) == "" {
		return preview{What: "To which time?", None: true}, nil
	}
	to, err := rewindTime(form)
	if err != nil {
		return preview{}, err
	}
	n, err := p.ops.Preview().Rewind(ctx, form.Get("listener"), to)
	if err != nil {
		return preview{}, err
	}
	if !to.IsZero() {
		form.Set("to", to.UTC().Format(time.RFC3339Nano)) // an age would mean a later time when it is confirmed
	}
	return preview{
		What:  fmt.Sprintf("Rewind listener %s. Afterwards it has %s before it.", form.Get("listener"), plural(n, "event", "events")),
		Means: "It handles events again that it has handled before. Attempts count from 1 again.",
		Count: n, Verb: "Rewind to " + plural(n, "event", "events"),
	}, nil
}

func (p *Page) previewDetach(ctx context.Context, form url.Values) (preview, error) {
	report, err := p.ops.Preview().Detach(ctx, form.Get("listener"))
	if err != nil {
		return preview{}, err
	}
	return preview{
		What: fmt.Sprintf("Detach listener %s: its %s and %s are deleted.", form.Get("listener"),
			plural(int64(report.Shards), "cursor", "cursors"), plural(report.Parked, "parked event", "parked events")),
		Means: "A process that runs it ends with an error. If it is started again, it begins where the YAML says.",
		Count: report.Parked, Verb: "Detach " + form.Get("listener"),
	}, nil
}

type actBody struct {
	Name, Title, Path, Back string
	Danger, NeedsWhy        bool
	Preview                 preview
	Hidden                  []input
	Inputs, Extras          []input
	Why                     string
}

func (p *Page) act(w http.ResponseWriter, r *http.Request) (act, bool) {
	at := slices.IndexFunc(p.acts, func(a act) bool { return a.name == r.PathValue("act") })
	if at < 0 {
		p.show(w, r, http.StatusNotFound, frame{Name: "problem", Title: "Not Found", Body: problem{"There is no such act.", "The menu leads to all pages."}})
		return act{}, false
	}
	return p.acts[at], true
}

// askAct shows what an act would do, and asks.
func (p *Page) askAct(w http.ResponseWriter, r *http.Request) {
	a, ok := p.act(w, r)
	if !ok {
		return
	}
	form := maps.Clone(r.URL.Query())
	shown, err := a.preview(r.Context(), form)
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := actBody{
		Name: a.name, Title: a.title, Path: p.view.path("acts", a.name), Back: a.back(form), Danger: a.danger, NeedsWhy: a.needsWhy, Preview: shown, Why: form.Get("why"),
	}
	for _, name := range a.fields {
		if v := form.Get(name); v != "" {
			body.Hidden = append(body.Hidden, input{Name: name, Value: v})
		}
	}
	for _, in := range a.inputs {
		in.Value = form.Get(in.Name)
		body.Inputs = append(body.Inputs, in)
	}
	body.Extras = a.extras
	p.show(w, r, http.StatusOK, frame{Name: "act", Title: a.title, Body: body})
}

// maxForm is the largest form, in bytes.
const maxForm = 64 << 10

// doAct does it, and leads back.
func (p *Page) doAct(w http.ResponseWriter, r *http.Request) {
	a, ok := p.act(w, r)
	if !ok {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, bad("the form cannot be read: %v", err))
		return
	}
	why := strings.TrimSpace(r.PostForm.Get("why"))
	if a.needsWhy && why == "" {
		p.fail(w, r, bad("why: say why, because this is recorded in the audit"))
		return
	}
	// An act that has begun is not left half done because somebody closes the window.
	ctx := context.WithoutCancel(r.Context())
	done, err := a.do(ctx, p.ops.As(whoIs(ctx), why), r.PostForm)
	p.overview.forget()
	p.groups.forget()
	if err != nil {
		p.fail(w, r, err)
		return
	}
	p.cfg.Logger.InfoContext(ctx, "dashboard: acted", "act", a.name, "who", whoIs(ctx), "events", done.N, "refused", done.Refused)
	to := a.back
	if a.after != nil {
		to = a.after
	}
	http.Redirect(w, r, to(r.PostForm)+"?"+done.query(a.name).Encode(), http.StatusSeeOther)
}
