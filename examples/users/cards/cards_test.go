package cards_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/examples/users/cards"
	"github.com/outboxgen/outboxgen/examples/users/events/userevents"
	"github.com/outboxgen/outboxgen/publish"
)

func TestCardsFollowTheUsers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(30)
	f.publish(events...)
	p := f.project()
	f.requireCards(want...)
	f.requireEachOnce(len(events))
	require.Equal(t, cards.Counts{Applied: int64(len(events))}, p.Counts())
}

// TestDuplicates sends all events three times: twice in a row, and once more after they were handled.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(20)
	var twice []publish.Outgoing
	for _, e := range events {
		twice = append(twice, e, e)
	}
	f.publish(twice...)
	p := f.project()
	require.Equal(t, cards.Counts{Applied: int64(len(events)), Duplicate: int64(len(events))}, p.Counts())
	f.publish(events...)
	p = f.project() // by a later process
	require.Equal(t, cards.Counts{Duplicate: int64(len(events))}, p.Counts())
	f.requireCards(want...)
	f.requireEachOnce(len(events))
}

// TestAnyOrder shuffles all events, including those of one user, and repeats some.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(80)
	shuffle(events)
	again := append(events[:len(events):len(events)], events[:40]...)
	shuffle(again)
	f.publish(again...)
	p := f.project()
	f.requireCards(want...)
	counts := p.Counts()
	require.Equal(t, int64(40), counts.Duplicate)
	require.Equal(t, int64(len(events)), counts.Applied+counts.Skipped)
	require.Positive(t, counts.Skipped)
}

// TestLateRenameBringsNobodyBack: a late rename does not bring a deleted user back, even if the inbox was emptied.
func TestLateRenameBringsNobodyBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.life(2, true)
	f.publish(events[0], events[3], events[2])
	p := f.project()
	f.requireCards(want)
	require.Equal(t, cards.Counts{Applied: 2, Skipped: 1}, p.Counts())

	f.exec("TRUNCATE cards_inbox.processed_events, cards_inbox.entity_versions")
	f.publish(events[1])
	f.project()
	f.requireCards(want)
}

// TestSeveralProcesses: several processes share the work, and one of them stops in the middle.
func TestSeveralProcesses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.lives(60)
	first, second := f.projection(), f.projection()
	leave := f.start(first)
	stop := f.start(second)
	f.publish(events[:len(events)/2]...)
	require.Eventually(t, func() bool { return first.Counts().Applied+second.Counts().Applied > 20 }, patience, look)
	require.NoError(t, leave())
	f.publish(events[len(events)/2:]...)
	f.awaitEnd(second)
	require.NoError(t, stop())
	f.requireCards(want...)
	f.requireEachOnce(len(events))
}

// TestRunNamesWhatIsWrong: Run returns an error that names the cause, and does not retry forever.
func TestRunNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorContains(t, f.projection(func(cfg *cards.Config) { cfg.Brokers = nil }).Run(t.Context()), "field Brokers is empty")
	f.exec("DROP TABLE cards.generation")
	require.ErrorContains(t, f.projection().Run(t.Context()), "read generation: ")
}

// TestDependencies: the packages that another service imports do not import the producer's side.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".", "../cmd/cards", "../events/userevents").Output()
	require.NoError(t, err)
	const module = "github.com/outboxgen/outboxgen/"
	deps := strings.Fields(string(out))
	require.Contains(t, deps, module+"consume")
	require.Contains(t, deps, module+"examples/users/events/userevents")
	for _, dep := range deps {
		for _, producer := range []string{"outbox", "publish", "examples/users/events", "examples/users/user", "examples/users/database"} {
			require.NotEqual(t, module+producer, dep)
			if producer != "examples/users/events" {
				require.False(t, strings.HasPrefix(dep, module+producer+"/"), dep)
			}
		}
	}
}

// TestAnotherTenantsUserHasACardOfItsOwn: users of two tenants may have the same id.
func TestAnotherTenantsUserHasACardOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	events, want := f.life(4, false)
	f.publish(events...)
	f.project()
	other := *f
	other.tenant = uuid.New()
	theirs := want
	theirs.Version, theirs.Name, theirs.Email = 1, "theirs", "b@example.com"
	f.publish(other.event(theirs, "created", userevents.UserCreated{
		TenantID: other.tenant, UserID: theirs.UserID, UserVersion: 1,
		Profile: userevents.Profile{Name: theirs.Name, Email: theirs.Email, JoinedAt: joined},
	}))
	f.project()
	f.requireCards(want)
	other.requireCards(theirs)
}
