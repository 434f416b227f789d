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
	r := result{
		N: number(q.Get("n")), Of: number(q.Get("of")), Refused: number(q.Get("refused")), Others: number(q.Get("others")),
	}
	for i, why := range refusals {
		if slices.Contains(q["because"], strconv.Itoa(i)) {
			r.Why = append(r.Why, why)
		}
	}
	return r
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

// input is a field of a form.
type input struct {
	Name, Label, Hint string
	Value             string
	Optional          bool // it may be empty; extras always may
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
		p.replayAct(), p.discardAct(), p.pauseAct(), p.resumeAct(), p.skipAct(), p.rewindAct(), p.detachAct(), p.limitAct(),
		p.limitResetAct(), p.forgetProcessAct(),
	}
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
		p.show(w, r, http.StatusNotFound, frame{
			Name: "problem", Title: "Not Found", Body: problem{"There is no such act.", "The menu leads to all pages."},
		})
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
		Name: a.name, Title: a.title, Path: p.view.path("acts", a.name), Back: a.back(form), Danger: a.danger,
		NeedsWhy: a.needsWhy, Preview: shown, Why: form.Get("why"),
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
	p.cfg.Logger.InfoContext(ctx, "dashboard: acted", "act", a.name, "who", whoIs(ctx), "events", done.N, "refused",
		done.Refused)
	to := a.back
	if a.after != nil {
		to = a.after
	}
	http.Redirect(w, r, to(r.PostForm)+"?"+done.query(a.name).Encode(), http.StatusSeeOther)
}
