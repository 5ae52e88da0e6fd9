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
