// Package agents tries the product with its users: coding agents as their makers ship
// them, each in a home of its own, on loopback alone. The agents' language model is a
// Model, which follows a script; the tests look at what that model is shown, and at what
// the agents and the gateway say to each other.
//
// Gemini CLI and Qwen Code run with the other tests, where "make node" has installed them.
// "make agents" fetches the others, and runs what takes long.
package agents
