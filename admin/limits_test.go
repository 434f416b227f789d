package admin_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/admin"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
)

// TestLimitsAreListedSetAndReset: a limit says what is declared and set, who uses how much of it and what waits. A change
// holds in the processes that run, whatever they have declared, and is audited. A reset brings back what is declared.
func TestLimitsAreListedSetAndReset(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	hour := outbox.Rate{Events: 10, Period: time.Hour} // so long that every event begins in time
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: 20}, outbox.Limit{Per: "{secret}", Concurrency: 2, Rate: hour})
	var jobs []runtimetest.Job
	for i := range 30 {
		jobs = append(jobs, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: []string{"a/b", "c"}[i%15/14]})
	}
	runtimetest.EnqueueJobs(t, pool, topic, jobs...)
	begun, end := make(chan string, 100), make(chan struct{})
	stop := runtimetest.StartDispatcher(t, runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, func(_ context.Context, d outbox.Delivery[runtimetest.Job]) error {
		begun <- d.Payload.Secret
		<-end
		return nil
	})))
	begins := func(n int) {
		t.Helper()
		for range n {
			select {
			case <-begun:
			case <-time.After(30 * time.Second):
				require.FailNow(t, "no event begins")
			}
		}
		require.Empty(t, begun)
	}
	begins(4)

	of := admin.LimitScope{Namespace: "jobs", Topic: "limited", Per: "{secret}"}
	declared := admin.LimitValue{Concurrency: 2, Rate: hour}
	limits, err := a.Limits(t.Context())
	require.NoError(t, err)
	require.Len(t, limits, 2)
	keyed, whole := limits[0], limits[1]
	require.Equal(t, of, keyed.LimitScope, "the widest comes last")
	require.Equal(t, declared, keyed.Value)
	require.Equal(t, declared, keyed.Declared)
	require.Nil(t, keyed.Set)
	require.Len(t, keyed.Keys, 2)
	first := keyed.Keys[0]
	require.WithinDuration(t, time.Now(), first.Oldest, time.Minute)
	first.Oldest = time.Time{}
	require.Equal(t, admin.LimitUse{Key: "a%2Fb", Running: 2, Starts: 2, Full: true, Waiting: 26}, first)
	require.Equal(t, admin.LimitUse{Key: "c", Running: 2, Starts: 2, Full: true}, keyed.Keys[1])
	full, waiting := keyed.Full()
	require.Len(t, full, 2)
	require.EqualValues(t, 26, waiting)
	require.Len(t, whole.Keys, 1)
	require.EqualValues(t, 4, whole.Keys[0].Running)
	require.False(t, whole.Keys[0].Full)
	text, err := json.Marshal(keyed)
	require.NoError(t, err)
	require.Contains(t, string(text), `"per":"{secret}","value":{"concurrency":2,"rate":"10/1h"}`)

	// Higher: the running process starts more at once. What is not given stays.
	act := admin.Act{Who: "ann", Why: "a busy day", Until: time.Now().Add(time.Hour)}
	dry := act
	dry.DryRun = true
	for _, act := range []admin.Act{dry, act} {
		report, err := a.SetLimit(t.Context(), of, admin.LimitValue{Concurrency: 5}, act)
		require.NoError(t, err)
		require.Equal(t, []admin.LimitChange{{LimitScope: of, Before: declared, After: admin.LimitValue{Concurrency: 5, Rate: hour}, Keys: 2, Waiting: 26}}, report.Changed)
	}
	begins(3)
	limits, err = a.TopicLimits(t.Context(), "jobs", "limited")
	require.NoError(t, err)
	require.Equal(t, admin.LimitValue{Concurrency: 5}, limits[0].Set.LimitValue)
	require.Equal(t, "ann", limits[0].Set.Who)
	require.WithinDuration(t, act.Until, limits[0].Set.Until, time.Millisecond)

	// Lower than what runs: nothing is cancelled, nothing starts.
	report, err := a.SetLimit(t.Context(), of, admin.LimitValue{Concurrency: 1, Rate: outbox.Rate{Events: 20, Period: time.Hour}}, admin.Act{Who: "bob"})
	require.NoError(t, err)
	require.Equal(t, 2, report.Changed[0].Over)
	limits, err = a.TopicLimits(t.Context(), "jobs", "limited")
	require.NoError(t, err)
	require.True(t, limits[0].Set.Until.IsZero())
	require.Equal(t, "concurrency 1, rate 20/1h", limits[0].Value.String())
	require.EqualValues(t, 5, limits[0].Keys[0].Running)

	for _, every := range []bool{false, true} {
		report, err = a.ResetLimit(t.Context(), of, every, admin.Act{Who: "bob"})
		require.NoError(t, err)
		if every {
			require.Empty(t, report.Changed, "it was reset")
			break
		}
		require.Equal(t, declared, report.Changed[0].After)
	}
	limits, err = a.TopicLimits(t.Context(), "jobs", "limited")
	require.NoError(t, err)
	require.Nil(t, limits[0].Set)
	close(end)
	require.NoError(t, stop())

	page, err := a.Audit(t.Context(), admin.AuditFilter{}, admin.Page{})
	require.NoError(t, err)
	var scopes []string
	for _, e := range page.Entries {
		scopes = append(scopes, e.Action+" "+e.Scope)
	}
	require.Len(t, scopes, 3)
	require.Equal(t, "limit-reset jobs/limited, per {secret}, concurrency 2, rate 10/1h", scopes[0])
	require.Equal(t, "limit jobs/limited, per {secret}, concurrency 1, rate 20/1h", scopes[1])
	require.Contains(t, scopes[2], "limit jobs/limited, per {secret}, concurrency 5, until ")
}

// TestLimitArguments: what cannot be set is refused, with the reason.
func TestLimitArguments(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t)
	a := runtimetest.AdminOf(t, pool)
	act := admin.Act{Who: "ann"}
	of := admin.LimitScope{Namespace: "jobs", Topic: "limited", Per: "tenant"}
	set := func(s admin.LimitScope, v admin.LimitValue, act admin.Act) error {
		_, err := a.SetLimit(t.Context(), s, v, act)
		return err
	}
	five := admin.LimitValue{Concurrency: 5}
	require.EqualError(t, set(of, five, act), "set limit jobs/limited per tenant: unknown limit jobs/limited per tenant: "+
		"no topic has limits; a limit is declared in the YAML, by a process that runs the topic")
	topic := runtimetest.LimitedJobs("limited", outbox.Limit{Concurrency: 20}, outbox.Limit{Per: "{secret}", Concurrency: 2})
	_, err := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed)).Drain(t.Context())
	require.NoError(t, err)
	require.EqualError(t, set(of, five, act), "set limit jobs/limited per tenant: unknown limit jobs/limited per tenant: "+
		"known limits are jobs/limited per {secret}; jobs/limited")
	_, err = a.ResetLimit(t.Context(), of, false, act)
	require.ErrorAs(t, err, new(*admin.UnknownLimitError))
	require.EqualError(t, set(of, five, admin.Act{}), "set limit: act: Who is empty: say who does it")
	require.ErrorContains(t, set(of, admin.LimitValue{}, act), "set limit: limit value is empty: give a concurrency, a rate or both")
	require.ErrorContains(t, set(of, admin.LimitValue{Concurrency: -1}, act), "concurrency -1 is not between 1 and 2147483647")
	require.ErrorContains(t, set(of, admin.LimitValue{Rate: outbox.Rate{Events: 1, Period: time.Millisecond}}, act), "period 1ms of the rate is not between 1s and 24h0m0s")
	require.ErrorContains(t, set(admin.LimitScope{Topic: "limited"}, five, act), "limit scope needs a namespace and a topic")
	var rate outbox.Rate
	for _, text := range []string{"10", "x/1m", "10/1", "0/1m", "10/1ms"} {
		require.Error(t, rate.UnmarshalText([]byte(text)), text)
	}
	for _, text := range []string{"", "10/1m", "5/1h30m", "7/2h", "1/1.5s", "3/1m30s"} {
		require.NoError(t, rate.UnmarshalText([]byte(text)))
		require.Equal(t, text, rate.String())
	}
}
