package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// prometheus reads the charts' past from a Prometheus that scrapes telemetry/prometheus.
type prometheus struct {
	base   string
	client *http.Client
}

func newPrometheus(base string) *prometheus {
	return &prometheus{strings.TrimSuffix(base, "/"), &http.Client{Timeout: 5 * time.Second}}
}

// upstreamSeries are the queries, each with the label that has the name of the topic or listener.
var upstreamSeries = []struct{ query, label, kind string }{
	{"max by (topic) (outboxgen_due_events)", "topic", seriesDue},
	{"max by (topic) (outboxgen_oldest_due_seconds)", "topic", seriesOldest},
	{`max by (topic) (outboxgen_dead_letters{topic!=""})`, "topic", seriesDead},
	{"sum by (topic) (rate(outboxgen_enqueued_events_total[5m]))", "topic", seriesEnqueued},
	{`sum by (topic) (rate(outboxgen_settled_events_total{listener="",settlement="delivered"}[5m]))`, "topic",
		seriesDelivered},
	{"max by (listener) (outboxgen_listener_unread_events)", "listener", seriesDue},
	{"max by (listener) (outboxgen_listener_lag_seconds)", "listener", seriesOldest},
	{`max by (listener) (outboxgen_dead_letters{listener!=""})`, "listener", seriesDead},
}

// maxUpstream is the longest answer that is read, in bytes.
const maxUpstream = 32 << 20

// lastHour returns the series of the last hour.
func (u *prometheus) lastHour(ctx context.Context) (map[seriesKey][]point, error) {
	series := make(map[seriesKey][]point)
	now := time.Now()
	for _, s := range upstreamSeries {
		result, err := u.queryRange(ctx, s.query, now.Add(-historySpan), now)
		if err != nil {
			return nil, fmt.Errorf("ask Prometheus for %s: %w", s.query, err)
		}
		for _, r := range result {
			name := r.Metric[s.label]
			if name == "" {
				continue
			}
			if s.label == "listener" {
				name = ofListener(name)
			}
			for _, v := range r.Values {
				if p, ok := v.point(); ok {
					key := seriesKey{name, s.kind}
					series[key] = append(series[key], p)
				}
			}
		}
	}
	return series, nil
}

// matrix is a part of what Prometheus answers.
type matrix struct {
	Metric map[string]string `json:"metric"`
	Values []matrixValue     `json:"values"`
}

// matrixValue is [seconds, "value"].
type matrixValue [2]any

func (v matrixValue) point() (point, bool) {
	seconds, ok := v[0].(float64)
	text, isText := v[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	if !ok || !isText || err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return point{}, false
	}
	return point{time.UnixMilli(int64(seconds * 1000)), value}, true
}

func (u *prometheus) queryRange(ctx context.Context, query string, start, end time.Time) ([]matrix, error) {
	form := url.Values{
		"query": {query},
		"start": {start.UTC().Format(time.RFC3339)},
		"end":   {end.UTC().Format(time.RFC3339)},
		"step":  {fmt.Sprint(sampleEvery.Seconds())},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.base+"/api/v1/query_range?"+form.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := u.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %s", resp.Status)
	}
	var answer struct {
		Data struct {
			Result []matrix `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxUpstream)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("the answer is not that of a Prometheus: %w", err)
	}
	return answer.Data.Result, nil
}
