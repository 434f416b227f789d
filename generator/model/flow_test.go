package model_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
)

func TestLimitsAndBatches(t *testing.T) {
	t.Parallel()
	m := load(t, head+topic(`tenant_id: uuid, mailbox_id: uuid`, "tenant: tenant_id", "batch: {size: 500, wait: 200ms}",
		`limits: [{concurrency: 200}, {per: tenant, concurrency: 5}, {per: "{mailbox_id}", concurrency: 1, rate: 10/1m}]`))
	turn := m.Namespaces[0].Topics[0]
	mailbox := turn.Fields[1]
	require.Equal(t, []model.Limit{
		{Concurrency: 200},
		{Per: model.PerTenant, Concurrency: 5},
		{
			Per: "{mailbox_id}", Key: &model.Template{Text: "{mailbox_id}", Segments: []model.Segment{{Field: mailbox}}},
			Concurrency: 1, Rate: model.Rate{Events: 10, Period: time.Minute},
		},
	}, turn.Limits)
	require.Equal(t, model.Batch{Size: 500, Wait: 200 * time.Millisecond}, turn.Batch)
	require.Equal(t, "HandleTurnFinalizedBatch", turn.HandlerMethod(turn.Batch))
	require.Equal(t, "HandleTurnFinalized", turn.HandlerMethod(model.Batch{}))
}

func TestListenersHaveBatchAndRate(t *testing.T) {
	t.Parallel()
	l := load(t, head+topic("id: uuid", "delivery: log")+
		"listeners: {mover: {topics: [mini_chat/turn_finalized], mode: transactional, batch: {size: 2, wait: 1m}, rate: 1/24h}}").Listeners[0]
	require.Equal(t, model.Batch{Size: 2, Wait: time.Minute}, l.Batch)
	require.Equal(t, model.Rate{Events: 1, Period: 24 * time.Hour}, l.Rate)
}

// TestBatchesFitTheMachine: the largest batch of the YAML is the largest that dispatchers and listeners read.
func TestBatchesFitTheMachine(t *testing.T) {
	t.Parallel()
	source := func(size int) []byte { return []byte(head + topic("id: uuid", fmt.Sprintf("batch: {size: %d}", size))) }
	m, findings := model.Load(source(config.MaxBatchSize), "outbox.yaml")
	require.Empty(t, findings)
	require.Equal(t, config.MaxBatchSize, m.Namespaces[0].Topics[0].Batch.Size)
	_, findings = model.Load(source(config.MaxBatchSize+1), "outbox.yaml")
	require.Len(t, findings, 1)
}

// TestPerIsThatOfTheRunTime: the generator and the runtime call keys the same.
func TestPerIsThatOfTheRunTime(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{outbox.PerTenant, outbox.PerDestination}, []string{model.PerTenant, model.PerDestination})
}

// TestBoundsOfRates: each bound is allowed, and what is one further is not.
func TestBoundsOfRates(t *testing.T) {
	t.Parallel()
	for rate, ok := range map[string]bool{
		"1/1s": true, "2147483647/24h": true, "7/1m30s": true, "010/1.5s": true,
		"0/1s": false, "2147483648/1s": false, "10/999ms": false, "10/24h0m1s": false, "10/0s": false, "10": false,
		"ten/1m": false, "10/500ms": false, "10/": false, "/1m": false, "-1/1m": false, "1.5/1m": false, "10/m": false, "10/1d": false,
		"10 / 1m": false,
	} {
		_, findings := model.Load([]byte(head+topic("id: uuid", "limits: [{rate: "+rate+"}]")), "outbox.yaml")
		require.Equal(t, ok, len(findings) == 0, "%s: %v", rate, findings)
		listener := "listeners: {mover: {topics: [mini_chat/turn_finalized], rate: " + rate + "}}"
		_, findings = model.Load([]byte(head+topic("id: uuid", "delivery: log")+listener), "outbox.yaml")
		require.Equal(t, ok, len(findings) == 0, "%s: %v", rate, findings)
	}
}

// TestFourLimits: the fifth limit is the one that is too many.
func TestFourLimits(t *testing.T) {
	t.Parallel()
	limits := make([]string, 5)
	for i := range limits {
		limits[i] = fmt.Sprintf(`{per: "x%d/{id}", concurrency: 1}`, i)
	}
	require.Len(t, load(t, head+topic("id: uuid", "limits: ["+strings.Join(limits[:4], ", ")+"]")).Namespaces[0].Topics[0].Limits, 4)
	_, findings := model.Load([]byte(head+topic("id: uuid", "limits: ["+strings.Join(limits, ", ")+"]")), "outbox.yaml")
	require.Len(t, findings, 1)
}
