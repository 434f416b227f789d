package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/model"
)

// topicRow is a topic as list shows it. Durations are in Go's syntax, as in the YAML.
type topicRow struct {
	Topic        string       `json:"topic"`
	Version      int          `json:"version"`
	Delivery     string       `json:"delivery"`
	Tenant       string       `json:"tenant,omitempty"`
	DedupeKey    string       `json:"dedupe_key,omitempty"`
	PartitionKey string       `json:"partition_key,omitempty"`
	Entity       *entityRow   `json:"entity,omitempty"`
	Wake         string       `json:"wake"`
	Lease        string       `json:"lease"`
	Retry        retryRow     `json:"retry"`
	RetryHorizon string       `json:"retry_horizon"`
	Retention    retentionRow `json:"retention"`
	Doc          string       `json:"doc,omitempty"`
}

type entityRow struct {
	Type    string `json:"type"`
	ID      string `json:"id,omitempty"`
	Version string `json:"version,omitempty"`
}

type retryRow struct {
	MaxAttempts int    `json:"max_attempts"`
	BaseDelay   string `json:"base_delay"`
	MaxDelay    string `json:"max_delay"`
}

type retentionRow struct {
	Delivered string `json:"delivered"`
	Dead      string `json:"dead"`
}

func (a *app) listCommand() *cobra.Command {
	var src source
	c := &cobra.Command{
		Use:   "list",
		Short: "List the topics of outbox.yaml with their keys and retry horizons",
		Long: `list prints the topics in the order of the YAML. The retry horizon is the longest time from the first
attempt to the last, without the time that handlers take; retention.delivered, the window in which a
dedupe key is known, must exceed it.`,
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
				return a.printJSON(rows)
			}
			return a.printTopics(rows)
		}),
	}
	src.flags(c)
	return c
}

func newTopicRow(t *model.Topic) topicRow {
	row := topicRow{
		Topic:        t.FullName(),
		Version:      t.Version,
		Delivery:     string(t.Delivery),
		DedupeKey:    templateText(t.DedupeKey),
		PartitionKey: templateText(t.PartitionKey),
		Wake:         "bell",
		Lease:        span(t.Lease),
		Retry: retryRow{
			MaxAttempts: t.Retry.MaxAttempts,
			BaseDelay:   span(t.Retry.BaseDelay),
			MaxDelay:    span(t.Retry.MaxDelay),
		},
		RetryHorizon: span(t.Retry.Horizon()),
		Retention:    retentionRow{Delivered: span(t.Retention.Delivered), Dead: span(t.Retention.Dead)},
		Doc:          t.Doc,
	}
	if !t.Bell {
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

func (a *app) printTopics(rows []topicRow) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	table := [][]any{{"TOPIC", "VERSION", "DELIVERY", "TENANT", "DEDUPE KEY", "PARTITION KEY", "ATTEMPTS", "RETRY HORIZON", "LEASE", "DELIVERED KEPT", "DEAD KEPT"}}
	for _, r := range rows {
		table = append(table, []any{r.Topic, r.Version, r.Delivery, dash(r.Tenant), dash(r.DedupeKey), dash(r.PartitionKey),
			r.Retry.MaxAttempts, r.RetryHorizon, r.Lease, r.Retention.Delivered, r.Retention.Dead})
	}
	for _, row := range table {
		for i, cell := range row {
			if i > 0 {
				_, _ = fmt.Fprint(w, "\t") // Flush reports what went wrong
			}
			_, _ = fmt.Fprint(w, cell)
		}
		_, _ = fmt.Fprintln(w)
	}
	return w.Flush()
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
