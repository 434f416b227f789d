package alerts

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// The parts of a dashboard of Grafana that we use.
type (
	dashboard struct {
		Title         string     `json:"title"`
		UID           string     `json:"uid"`
		Tags          []string   `json:"tags"`
		SchemaVersion int        `json:"schemaVersion"`
		Editable      bool       `json:"editable"`
		Refresh       string     `json:"refresh"`
		Time          timeRange  `json:"time"`
		Templating    templating `json:"templating"`
		Panels        []panel    `json:"panels"`
	}
	timeRange struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	templating struct {
		List []variable `json:"list"`
	}
	variable struct {
		Name       string      `json:"name"`
		Label      string      `json:"label"`
		Type       string      `json:"type"`
		Query      string      `json:"query"`
		Datasource *datasource `json:"datasource,omitempty"`
		Multi      bool        `json:"multi"`
		IncludeAll bool        `json:"includeAll"`
		AllValue   string      `json:"allValue,omitempty"`
		Current    *selected   `json:"current,omitempty"`
		Options    []selected  `json:"options,omitempty"`
		Refresh    int         `json:"refresh,omitempty"`
	}
	selected struct {
		Selected bool   `json:"selected"`
		Text     string `json:"text"`
		Value    string `json:"value"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID          int         `json:"id"`
		Title       string      `json:"title"`
		Description string      `json:"description"`
		Type        string      `json:"type"`
		Datasource  datasource  `json:"datasource"`
		GridPos     gridPos     `json:"gridPos"`
		FieldConfig fieldConfig `json:"fieldConfig"`
		Targets     []target    `json:"targets"`
	}
	gridPos struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	fieldConfig struct {
		Defaults  defaults `json:"defaults"`
		Overrides []string `json:"overrides"`
	}
	defaults struct {
		Unit string `json:"unit"`
		Min  int    `json:"min"`
	}
	target struct {
		RefID        string     `json:"refId"`
		Expr         string     `json:"expr"`
		LegendFormat string     `json:"legendFormat"`
		Datasource   datasource `json:"datasource"`
	}
)

var source = datasource{"prometheus", "${datasource}"}

// all is the choice of everything. Its value also matches a metric without the label.
var all = selected{true, "All", "$__all"}

// Dashboard returns a dashboard for Grafana, to import as JSON.
func Dashboard(c Config) ([]byte, error) {
	c = c.withDefaults()
	uid := "outboxgen"
	if c.Name != "" {
		uid += "-" + c.Name
	}
	d := dashboard{
		Title: title("Outbox", c.Name), UID: uid, Tags: []string{"outboxgen"}, SchemaVersion: 39, Editable: true,
		Refresh: "30s", Time: timeRange{"now-3h", "now"},
		Templating: templating{[]variable{
			{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
			c.choice("topic", "Topic", slices.Sorted(maps.Keys(c.Topics)), "outboxgen_due_events"),
			c.choice("listener", "Listener", slices.Sorted(maps.Keys(c.Listeners)), "outboxgen_listener_lag_seconds"),
			// the YAML does not name those of this database
			c.choice("consumer", "Consumer", nil, "outboxgen_consumer_dead_letters"),
		}},
	}
	for i, p := range c.panels() {
		p.ID, p.Type, p.Datasource = i+1, "timeseries", source
		p.GridPos = gridPos{H: 8, W: 8, X: i % 3 * 8, Y: i / 3 * 8}
		p.FieldConfig.Overrides = []string{}
		d.Panels = append(d.Panels, p)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(d)
	return b.Bytes(), err
}

// choice returns a variable whose values are names, or what the label of metric has if there are none.
func (c Config) choice(name, label string, names []string, metric string) variable {
	v := variable{Name: name, Label: label, Multi: true, IncludeAll: true, AllValue: ".*", Current: &all}
	if len(names) == 0 {
		v.Type, v.Datasource, v.Refresh = "query", &source, 2
		v.Query = "label_values(" + c.metric(metric) + ", " + name + ")"
		return v
	}
	v.Type, v.Query, v.Options = "custom", strings.Join(names, ","), []selected{all}
	for _, n := range names {
		v.Options = append(v.Options, selected{false, n, n})
	}
	return v
}

const (
	ofTopic    = `topic=~"$topic"`
	ofListener = `listener=~"$listener"`
	ofConsumer = `consumer=~"$consumer"`
)

// panels returns the panels in the order of the questions: what waits, what fails, what is slow, who runs.
func (c Config) panels() []panel {
	gauge := func(name string, m ...string) string { return across("max", c.metric(name, m...)) }
	rate := func(by, name string, m ...string) string {
		return "sum by (" + by + ") (rate(" + c.metric(name, m...) + "[5m]))"
	}
	quantile := func(q, by, name string, m ...string) string {
		return "histogram_quantile(" + q + ", " + rate("le, "+by, name+"_bucket", m...) + ")"
	}
	return []panel{
		newPanel("Oldest due event", "Age since its enqueue. This is the main alert.", "s",
			gauge("outboxgen_oldest_due_seconds", ofTopic), "{{topic}}"),
		newPanel("Waiting events", "Events of queue topics that are not final. Counts end at 100,000.", "short",
			gauge("outboxgen_due_events", ofTopic), "{{topic}} due",
			gauge("outboxgen_retrying_events", ofTopic), "{{topic}} retrying",
			gauge("outboxgen_scheduled_events", ofTopic), "{{topic}} scheduled",
			gauge("outboxgen_in_flight_events", ofTopic), "{{topic}} in flight"),
		newPanel("Waiting at limits", "Due events that wait at a limit, and how much of it the busiest key uses.", "short",
			gauge("outboxgen_limit_waiting_events", ofTopic), "{{topic}} per {{per}}",
			gauge("outboxgen_limit_full_keys", ofTopic), "{{topic}} per {{per}}: full keys",
			gauge("outboxgen_limit_used_ratio", ofTopic), "{{topic}} per {{per}}: used"),
		newPanel("Listener lag", "Age of the oldest event that a listener has not handled.", "s",
			gauge("outboxgen_listener_lag_seconds", ofListener), "{{listener}}"),
		newPanel("Enqueued per second", "Includes events whose transaction was rolled back.", "ops",
			rate("topic", "outboxgen_enqueued_events_total", ofTopic), "{{topic}}",
			rate("topic", "outboxgen_enqueue_duplicates_total", ofTopic), "{{topic}} duplicates",
			rate("topic", "outboxgen_enqueue_failures_total", ofTopic), "{{topic}} failures"),
		newPanel("Settled per second", "How attempts end.", "ops",
			rate("topic, listener, settlement", "outboxgen_settled_events_total", ofTopic, ofListener),
			"{{topic}} {{listener}} {{settlement}}",
			rate("topic, listener", "outboxgen_lost_events_total", ofTopic, ofListener), "{{topic}} {{listener}} lost"),
		newPanel("Unread by listeners", "An estimate, and the events that are parked behind a failed one.", "short",
			gauge("outboxgen_listener_unread_events", ofListener), "{{listener}} unread",
			gauge("outboxgen_listener_parked_events", ofListener), "{{listener}} parked"),
		newPanel("Dead letters", "Kept dead letters, and new ones per second.", "short",
			gauge("outboxgen_dead_letters", ofTopic, ofListener), "{{topic}}{{listener}}",
			rate("topic, listener", "outboxgen_dead_events_total", ofTopic, ofListener), "{{topic}} {{listener}} per second"),
		newPanel("Kept by consumers", "Messages of other services that could not be applied. Parked ones are tried again, "+
			"or wait behind one of their key.", "short",
			gauge("outboxgen_consumer_parked_messages", ofConsumer), "{{consumer}} parked",
			gauge("outboxgen_consumer_dead_letters", ofConsumer), "{{consumer}} dead"),
		newPanel("Oldest parked by consumers",
			"How long it has been kept. If one is due for minutes, no process of the consumer runs.", "s",
			gauge("outboxgen_consumer_oldest_parked_seconds", ofConsumer), "{{consumer}}",
			gauge("outboxgen_consumer_overdue_seconds", ofConsumer), "{{consumer}} due and not tried"),
		newPanel("Handler calls per second", "By outcome.", "ops",
			rate("topic, listener, outcome", "outboxgen_handled_events_total", ofTopic, ofListener),
			"{{topic}} {{listener}} {{outcome}}"),
		newPanel("Handler time", "95th percentile of the calls of handlers and publishers.", "s",
			quantile("0.95", "topic, listener", "outboxgen_handler_duration_seconds", ofTopic, ofListener),
			"{{topic}} {{listener}}"),
		newPanel("Claim time", "95th percentile. It grows if old row versions are kept: compare with the held snapshot.", "s",
			quantile("0.95", "dispatcher, listener", "outboxgen_claim_duration_seconds", ofListener),
			"{{dispatcher}}{{listener}}"),
		newPanel("Enqueue time", "95th percentile.", "s",
			quantile("0.95", "topic", "outboxgen_enqueue_duration_seconds", ofTopic), "{{topic}}"),
		newPanel("Held snapshot", "Age of the oldest transaction that keeps old row versions.", "s",
			gauge("outboxgen_held_snapshot_seconds"), "oldest transaction"),
		newPanel("Resting targets", "Topics, destinations and brokers that are unavailable.", "short",
			gauge("outboxgen_resting"), "{{target}}"),
		newPanel("Running processes", "Who takes a topic, and who runs a listener.", "short",
			gauge("outboxgen_topic_processes", ofTopic), "{{topic}}",
			gauge("outboxgen_listener_processes", ofListener), "listener {{listener}}",
			gauge("outboxgen_unhandled_versions", ofTopic), "{{topic}} versions without a process"),
		newPanel("Claimed per second", "Events taken by dispatchers and read by listeners, and paused listeners.", "ops",
			rate("topic, listener", "outboxgen_claimed_events_total", ofTopic, ofListener), "{{topic}} {{listener}}",
			gauge("outboxgen_listener_paused", ofListener), "{{listener}} paused"),
		newPanel("Reader of the gauges", "One process reads the gauges. 0 means that most panels are blind.", "short",
			"sum("+c.metric("outboxgen_gauges_reader")+")", "readers",
			"sum(rate("+c.metric("outboxgen_gauges_failures_total")+"[5m]))", "failures per second"),
	}
}

// newPanel returns a panel with queries, each an expression and its legend.
func newPanel(title, description, unit string, queries ...string) panel {
	p := panel{Title: title, Description: description}
	p.FieldConfig.Defaults.Unit = unit
	for i := 0; i < len(queries); i += 2 {
		p.Targets = append(p.Targets, target{string(rune('A' + i/2)), queries[i], queries[i+1], source})
	}
	return p
}
