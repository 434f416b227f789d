package report

import "time"

// every is how often a state that lasts is logged again.
const every = time.Minute
