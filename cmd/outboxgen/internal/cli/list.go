package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/model"
)

// topicRow is a topic in the output of list. Durations are in Go's syntax, as in the YAML. A log topic has no lease and
// no retry: its listeners have them.
type topicRow struct {
	Topic        string        `json:"topic"`
	Version      int           `json:"version"`
	RenamedFrom  []string      `json:"renamed_from,omitempty"`
	Delivery     string        `json:"delivery"`
	Tenant       string        `json:"tenant,omitempty"`
	DedupeKey    string        `json:"dedupe_key,omitempty"`
	PartitionKey string        `json:"partition_key,omitempty"`
	Fairness     string        `json:"fairness,omitempty"`
	Limits       []limitRow    `json:"limits,omitempty"`
	Batch        *batchRow     `json:"batch,omitempty"`
	MaxLag       string        `json:"max_lag,omitempty"`
	Entity       *entityRow    `json:"entity,omitempty"`
	Wake         string        `json:"wake"`
	Lease        string        `json:"lease,omitempty"`
	Retry        *retryRow     `json:"retry,omitempty"`
	RetryHorizon string        `json:"retry_horizon,omitempty"`
	Retention    retentionRow  `json:"retention"`
	Publish      *publishRow   `json:"publish,omitempty"`
	Listeners    []listenerRow `json:"listeners,omitzero"`
	Doc          string        `json:"doc,omitempty"`
}

type entityRow struct {
	Type    string `json:"type"`
	ID      string `json:"id,omitempty"`
	Version string `json:"version,omitempty"`
}

type publishRow struct {
	Broker           string   `json:"broker"`
	Destination      string   `json:"destination,omitempty"`
	DestinationField string   `json:"destination_field,omitempty"` // in place of Destination
	Key              string   `json:"key,omitempty"`               // empty means the partition key
	Headers          []string `json:"headers,omitempty"`
	WireName         string   `json:"wire_name,omitempty"` // empty means namespace.topic
	Tombstone        bool     `json:"tombstone,omitempty"`
}

func newPublishRow(p *model.Publication) *publishRow {
	if p == nil {
		return nil
	}
	row := &publishRow{
		Broker: string(p.Broker), Destination: p.Destination, Key: templateText(p.Key), WireName: p.WireName,
		Tombstone: p.Tombstone,
	}
	if p.Field != nil {
		row.DestinationField = p.Field.Name
	}
	for _, h := range p.Headers {
		row.Headers = append(row.Headers, h.Name)
	}
	return row
}

type retryRow struct {
	MaxAttempts int    `json:"max_attempts"`
	BaseDelay   string `json:"base_delay"`
	MaxDelay    string `json:"max_delay"`
}

func newRetryRow(r model.Retry) *retryRow {
	return &retryRow{MaxAttempts: r.MaxAttempts, BaseDelay: span(r.BaseDelay), MaxDelay: span(r.MaxDelay)}
}

type retentionRow struct {
	Delivered string `json:"delivered"`
	Dead      string `json:"dead"`
}

func (a *app) listCommand() *cobra.Command {
	var src source
	c := &cobra.Command{
		Use:   "list",
		Short: "List the topics, listeners and operations of outbox.yaml with their keys, destinations and retry horizons",
		Long: `list prints the topics in the order of the YAML, then the listeners and the operations. The retry horizon
is the longest time from the first attempt to the last, without the time that handlers take. It must be shorter than
retention.delivered, the window in which a dedupe key is known. For a log topic, attempts, retry horizon
and lease are settings of its listeners. For a published topic, list shows the broker and the
destination. With --json each log topic contains its listeners.`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			m, err := src.model(a)
			if err != nil {
				return err
			}
			rows := []topicRow{}
			for _, n := range m.Namespaces {
				for _, t := range n.Topics {
					rows = append(rows, newTopicRow(t))
				}
			}
			if a.json {
				return a.printJSON(struct {
					Topics     []topicRow     `json:"topics"`
					Operations []operationRow `json:"operations,omitempty"`
				}{rows, newOperationRows(m.Operations)})
			}
			return a.printTables(topicTable(rows), listenerTable(m.Listeners), operationTable(newOperationRows(m.Operations)))
		}),
	}
	src.flags(c)
	return c
}

func newTopicRow(t *model.Topic) topicRow {
	row := topicRow{
		Topic:        t.FullName(),
		Version:      t.Version,
		RenamedFrom:  t.Renamed,
		Delivery:     string(t.Delivery),
		DedupeKey:    templateText(t.DedupeKey),
		PartitionKey: templateText(t.PartitionKey),
		Fairness:     string(t.Fairness),
		Limits:       newLimitRows(t.Limits),
		Batch:        newBatchRow(t.Batch),
		Wake:         "doorbell",
		Retention:    retentionRow{Delivered: span(t.Retention.Delivered), Dead: span(t.Retention.Dead)},
		Publish:      newPublishRow(t.Publish),
		Doc:          t.Doc,
	}
	if t.MaxLag > 0 {
		row.MaxLag = span(t.MaxLag)
	}
	if t.Delivery == model.Log {
		row.Listeners = make([]listenerRow, len(t.Listeners))
		for i, l := range t.Listeners {
			row.Listeners[i] = newListenerRow(l)
		}
	} else {
		row.Lease, row.Retry, row.RetryHorizon = span(t.Lease), newRetryRow(t.Retry), span(t.Retry.Horizon())
	}
	if !t.Wake {
		row.Wake = "none"
	}
	if t.Tenant != nil {
		row.Tenant = t.Tenant.Name
	}
	if t.Entity != nil {
		row.Entity = &entityRow{Type: t.Entity.Type, ID: templateText(t.Entity.ID)}
		if t.Entity.Version != nil {
			row.Entity.Version = t.Entity.Version.Name
		}
	}
	return row
}

func topicTable(rows []topicRow) [][]any {
	table := [][]any{
		{"TOPIC", "VERSION", "DELIVERY", "TENANT", "DEDUPE KEY", "PARTITION KEY", "FAIRNESS", "MAX LAG", "ATTEMPTS",
			"RETRY HORIZON", "LEASE", "DELIVERED KEPT", "DEAD KEPT", "PUBLISHED TO", "LISTENERS"},
	}
	for _, r := range rows {
		attempts, listeners, to := "-", "-", "-"
		if r.Publish != nil {
			to = r.Publish.Broker + ":" + cmp.Or(r.Publish.Destination, "{"+r.Publish.DestinationField+"}")
		}
		if r.Retry != nil {
			attempts = strconv.Itoa(r.Retry.MaxAttempts)
		} else {
			names := make([]string, len(r.Listeners))
			for i, l := range r.Listeners {
				names[i] = l.Listener
			}
			listeners = cmp.Or(strings.Join(names, ","), "none")
		}
		table = append(table, []any{r.Topic, r.Version, r.Delivery, dash(r.Tenant), dash(r.DedupeKey), dash(r.PartitionKey),
			dash(r.Fairness), dash(r.MaxLag),
			attempts, dash(r.RetryHorizon), dash(r.Lease), r.Retention.Delivered, r.Retention.Dead, to, listeners})
	}
	return table
}

func templateText(t *model.Template) string {
	if t == nil {
		return ""
	}
	return t.Text
}

// span renders a duration without the zero units that time.Duration adds: 168h, 5m, 1m30s.
func span(d time.Duration) string {
	hours, rest := d/time.Hour, d%time.Hour
	switch {
	case d == 0:
		return "0s"
	case rest == 0:
		return strconv.FormatInt(int64(hours), 10) + "h"
	case d%time.Minute == 0 && hours == 0:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	case d%time.Minute == 0:
		return fmt.Sprintf("%dh%dm", hours, rest/time.Minute)
	}
	return d.String()
}

func dash(s string) string { return cmp.Or(s, "-") }

// count renders a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
