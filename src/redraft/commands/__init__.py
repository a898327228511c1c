"""The commands of `redraft`, by theme. Modules import nothing heavy before a command is called, so that help is quick.

arguments   what several commands take
cells       list, show
runs        run, compare, prompts
campaign    status, cost, recover
evaluate    evaluate
selfspec    calibrate, simulate, replay
schema      schema
"""
