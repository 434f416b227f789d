// Package campaign sizes tests of random or very many cases. `make test` runs some of the cases, `make campaign` all of
// them.
package campaign

import "os"

// Variable is the environment variable that asks for all cases, with any value.
const Variable = "OUTBOXGEN_TEST_CAMPAIGN"

// Of returns usual, or all in a campaign.
func Of(usual, all int) int {
	if os.Getenv(Variable) != "" {
		return all
	}
	return usual
}
