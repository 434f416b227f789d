package dashboard

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/admin"
)

// chip is a short remark on a topic or listener. Kind is bad, warn or info.
type chip struct {
	Kind, Text, Why string
}

type topicRow struct {
	admin.TopicStatus
	Chips []chip
	Chart chart
}

type listenerRow struct {
	admin.ListenerStatus
	Chips []chip
	Chart chart
}

type overviewBody struct {
	Topics    []topicRow
	LogTopics []logRow
	Listeners []listenerRow
	Processes []admin.Process
	Pauses    []admin.Pause
	Consumers []consumerRow
	Limits    []admin.LimitStatus
	AtLimit   string
}

type logRow struct {
	admin.LogTopicStatus
	Chart chart
}

// current returns the overview for a viewer, with the frame that says how old it is.
func (p *Page) current(r *http.Request, f frame) (figures, frame, error) {
	f.Done = p.doneText(r.URL.Query())
	wait := waitFor
	switch {
	case r.Header.Get("HX-Request") != "":
		wait = readLimit // a refresh is not in a hurry
	case f.Done != "":
		wait = firstWait // somebody wants to see what an act has changed
	}
	o := p.overview.get(r.Context(), freshFor, wait)
	if o.at.IsZero() && o.err == nil {
		o = p.overview.get(r.Context(), freshFor, firstWait)
	}
	f.Live, f.ReadAt = true, o.at
	switch {
	case o.at.IsZero() && o.err != nil:
		return o.value, f, o.err
	case o.at.IsZero():
		f.Stale, f.Reload = "The overview is being read. That takes longer than usual.", true
	case o.err != nil:
		f.Stale = fmt.Sprintf("This is %s old, because newer figures cannot be read: %v", ageText(time.Since(o.at)), o.err)
	}
	return o.value, f, nil
}

func (p *Page) showOverview(w http.ResponseWriter, r *http.Request) {
	o, f, err := p.current(r, frame{Name: "overview", Title: "Overview"})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	body := overviewBody{
		Processes: o.Processes, Pauses: o.Pauses, Consumers: consumerRows(o.Consumers), Limits: o.Limits,
		AtLimit: atLimit(o.Limits),
	}
	for _, t := range o.Topics {
		body.Topics = append(body.Topics, p.topicRow(t, o.Limits))
	}
	for _, t := range o.LogTopics {
		body.LogTopics = append(body.LogTopics, logRow{t, newChart("Appended", "/s", p.history.of(t.Name(), seriesEnqueued))})
	}
	for _, l := range admin.SumShards(o.Listeners) {
		body.Listeners = append(body.Listeners, p.listenerRow(l))
	}
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}

func (p *Page) topicRow(t admin.TopicStatus, limits []admin.LimitStatus) topicRow {
	chips := append(topicChips(t), fullChips(limitsOfTopic(limits, t.Namespace, t.Topic))...)
	return topicRow{t, chips, newChart("Due", "", p.history.of(t.Name(), seriesDue))}
}

func (p *Page) listenerRow(l admin.ListenerStatus) listenerRow {
	return listenerRow{l, listenerChips(l), newChart("Unread", "", p.history.of(ofListener(l.Listener), seriesDue))}
}

func topicChips(t admin.TopicStatus) []chip {
	var chips []chip
	if t.Unhandled {
		chips = append(chips, chip{"bad", "nobody runs it", "No running process takes this topic."})
	}
	for _, v := range t.UnhandledVersions {
		chips = append(chips, chip{
			"bad", fmt.Sprintf("version %d unknown", v), "Its events wait for a process that knows this payload version.",
		})
	}
	if t.MaxLag > 0 && t.Oldest > t.MaxLag {
		chips = append(chips, chip{
			"bad", "late", "The oldest event has waited longer than max_lag, " + ageText(t.MaxLag) + ".",
		})
	}
	if t.Expired.N > 0 {
		chips = append(chips, chip{
			"warn", t.Expired.String() + " expired",
			"A process has died or has lost the database. Its events are claimed again.",
		})
	}
	if len(t.Resting) > 0 {
		chips = append(chips, chip{
			"warn", "rests", "Its target is unavailable: " + shortText(firstLine(t.Resting[0].Reason)),
		})
	}
	return append(chips, pauseChips(t.Pauses)...)
}

func listenerChips(l admin.ListenerStatus) []chip {
	kind := map[admin.ListenerState]string{
		admin.ListenerRestored: "bad", admin.ListenerBlocked: "bad", admin.ListenerLagging: "bad",
		admin.ListenerResharding: "warn", admin.ListenerPaused: "warn",
	}[l.State]
	kind = cmp.Or(kind, "info")
	chips := []chip{{kind, string(l.State), shortText(firstLine(l.LastError))}}
	if len(l.Processes) == 0 {
		chips = append(chips, chip{"bad", "nobody runs it", "No running process has this listener."})
	}
	for _, v := range l.UnhandledVersions {
		chips = append(chips, chip{
			"bad", fmt.Sprintf("%s version %d unknown", v.Topic, v.Version),
			"Its events wait for a process that knows this payload version.",
		})
	}
	if l.State != admin.ListenerPaused {
		chips = append(chips, pauseChips(l.Pauses)...)
	}
	return chips
}

func pauseChips(pauses []admin.Pause) []chip {
	var chips []chip
	for _, s := range pauses {
		text := "paused"
		if s.TenantID.Valid {
			text = "paused for a tenant"
		}
		why := s.Who + " has paused " + s.Scope.String()
		if s.Why != "" {
			why += ": " + s.Why
		}
		chips = append(chips, chip{"warn", text, why})
	}
	return chips
}

type topicBody struct {
	topicRow
	Charts []chart
	Groups []admin.DeadGroup
	Pause  *admin.Pause // of exactly this topic
	Limits []limitRow
	// Log is set if it is a log topic, and then Readers are its listeners.
	Log     *admin.LogTopicStatus
	Readers []listenerRow
}

func (p *Page) showTopic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("namespace") + "/" + r.PathValue("topic")
	o, f, err := p.current(r, frame{Name: "topic", Title: name})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	var body topicBody
	charts := []struct{ title, kind, unit string }{
		{"Due", seriesDue, ""}, {"Age of the oldest event", seriesOldest, " s"},
		{"Enqueued", seriesEnqueued, "/s"}, {"Delivered", seriesDelivered, "/s"}, {"Dead letters", seriesDead, ""},
	}
	at := slices.IndexFunc(o.Topics, func(t admin.TopicStatus) bool { return t.Name() == name })
	inLog := slices.IndexFunc(o.LogTopics, func(t admin.LogTopicStatus) bool { return t.Name() == name })
	switch {
	case at >= 0:
		body.topicRow = p.topicRow(o.Topics[at], o.Limits)
		body.Limits = p.limitRows(limitsOfTopic(o.Limits, o.Topics[at].Namespace, o.Topics[at].Topic))
		for _, s := range o.Topics[at].Pauses {
			if s.Topic != "" && !s.TenantID.Valid {
				body.Pause = &s
			}
		}
	case inLog >= 0:
		body.Log = &o.LogTopics[inLog]
		charts = charts[2:3]
		for _, l := range admin.SumShards(o.Listeners) {
			if slices.Contains(body.Log.Listeners, l.Listener) {
				body.Readers = append(body.Readers, p.listenerRow(l))
			}
		}
	case f.Reload:
	default:
		p.show(w, r, http.StatusNotFound, frame{Name: "problem", Title: "Unknown topic", Body: problem{
			"There is no topic " + name + ".",
			"No process runs it, and no event of it is kept. The overview lists what there is."}})
		return
	}
	for _, c := range charts {
		body.Charts = append(body.Charts, newChart(c.title, c.unit, p.history.of(name, c.kind)))
	}
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}

type listenerBody struct {
	listenerRow
	Shards []admin.ListenerStatus
	Charts []chart
	Topics []string // that its processes read
}

func (p *Page) showListeners(w http.ResponseWriter, r *http.Request) {
	o, f, err := p.current(r, frame{Name: "listeners", Title: "Listeners"})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	var rows []listenerRow
	for _, l := range admin.SumShards(o.Listeners) {
		rows = append(rows, p.listenerRow(l))
	}
	f.Body = rows
	p.show(w, r, http.StatusOK, f)
}

func (p *Page) showListener(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	o, f, err := p.current(r, frame{Name: "listener", Title: "Listener " + name})
	if err != nil {
		p.fail(w, r, err)
		return
	}
	var body listenerBody
	for _, s := range o.Listeners {
		if s.Listener == name {
			body.Shards = append(body.Shards, s)
		}
	}
	if len(body.Shards) == 0 && !f.Reload {
		p.show(w, r, http.StatusNotFound, frame{Name: "problem", Title: "Unknown listener", Body: problem{
			"There is no listener " + name + ".", "It has not run yet, or it was detached. The overview lists what there is."}})
		return
	}
	if len(body.Shards) > 0 {
		body.listenerRow = p.listenerRow(admin.SumShards(body.Shards)[0])
		for _, process := range body.Processes {
			for topic := range process.Topics {
				if !slices.Contains(body.Topics, topic) {
					body.Topics = append(body.Topics, topic)
				}
			}
		}
		slices.SortFunc(body.Topics, strings.Compare)
	}
	for _, c := range []struct{ title, kind, unit string }{
		{"Unread", seriesDue, ""}, {"Age of the oldest unhandled event", seriesOldest, " s"},
		{"Dead letters", seriesDead, ""},
	} {
		body.Charts = append(body.Charts, newChart(c.title, c.unit, p.history.of(ofListener(name), c.kind)))
	}
	f.Body = body
	p.show(w, r, http.StatusOK, f)
}
