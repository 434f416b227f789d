package browsertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/dashboard"
	"github.com/outboxgen/outboxgen/internal/testing/pgtest"
	"github.com/outboxgen/outboxgen/internal/testing/runtimetest"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/queue"
)

// delivers returns how many events d delivers now.
func delivers(t testing.TB, d *queue.Dispatcher) int {
	t.Helper()
	report, err := d.Drain(t.Context())
	require.NoError(t, err)
	return report.Delivered
}

// TestLimits has somebody at a screen see from the overview which key is at its limit, change the limit, and reset it.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, script := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", script), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t)
			topic := runtimetest.LimitedJobs("mail", outbox.Limit{Per: "{secret}", Rate: outbox.Rate{Events: 2, Period: time.Hour}})
			for i := range 5 {
				runtimetest.EnqueueJobs(t, pool, topic, runtimetest.Job{TenantID: uuid.UUID{1}, N: int64(i), Secret: "mailbox 7"})
			}
			d := runtimetest.Dispatcher(t, pool, runtimetest.QuickConfig(), runtimetest.OnJob(topic, runtimetest.Succeed))
			require.Equal(t, 2, delivers(t, d))
			tb := open(t, serve(t, dashboard.Config{Pool: pool, Prefix: "/ops"}))
			if !script {
				tb.NoScript()
			}

			tb.visit("/")
			tb.untilText("at a limit")
			tb.follow(tb.link("Events of 1 key wait at its limit"))
			key := `document.querySelector('[aria-label="Keys"] tbody tr').innerText`
			require.Regexp(t, `^mailbox 7\s+jobs/mail\s+\{secret\}\s+0\s+2 of 2/1h\s+in .*\s+3\s`, value[string](tb, key))

			tb.follow(tb.link("Change…"))
			require.Contains(t, tb.text(".preview"), "jobs/mail per {secret} allows rate 2/1h now. What is it to allow?")
			tb.fill("rate", "4/1h")
			tb.follow(`form[method="get"].act button`)
			require.Contains(t, tb.text(".preview"), "from rate 2/1h to rate 4/1h. It affects 1 key and 3 events that wait.")
			tb.fill("until", "2h")
			tb.fill("why", "the provider has more room")
			tb.follow(`form[method="post"].act button`)
			require.Equal(t, "Changed. Running processes follow with their next claim.", tb.text(".done"))
			require.Equal(t, "ada limit the provider has more room 0", lastAudit(t, pool))
			require.Equal(t, 2, delivers(t, d))

			tb.visit("/limits?topic=jobs/mail")
			if script { // otherwise nothing refreshes the page
				tb.Until(key + `.match(/4 of 4\/1h/)`)
			}
			require.Contains(t, tb.text(".chip"), "ada has set rate 4/1h, until ")
			require.Equal(t, "Reset. The limit allows what the YAML says.", tb.act("Reset…"))
			require.Equal(t, "ada limit-reset 0", lastAudit(t, pool))
			require.Equal(t, 1, pgtest.Count(t, pool, "SELECT count(*)::int FROM outbox.limits WHERE set_until IS NULL"))
			require.Zero(t, delivers(t, d))
		})
	}
}
