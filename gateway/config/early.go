package config

// Switch turns something on or off.
type Switch string

// The values of a switch.
const (
	On  Switch = "on"
	Off Switch = "off"
)

// Values lists the positions in the order of the manual.
func (Switch) Values() []string { return []string{"on", "off"} }

// LogsMode says what an upstream's log messages do to a task.
type LogsMode string

// The values of logs.
const (
	LogsOff      LogsMode = "off"      // they are dropped
	LogsPartials LogsMode = "partials" // they are shown as partial results
)

// Values lists the modes in the order of the manual.
func (LogsMode) Values() []string { return []string{"off", "partials"} }
