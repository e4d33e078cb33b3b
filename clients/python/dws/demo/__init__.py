"""A toy loop on this machine, as a first look at DWS: python3 -m dws.demo

A trainer and two engines learn which answer belongs to which prompt, by policy gradient. The engines sample with
weights that only DWS brings to them. Needs what the wheel needs, and the daemons.
"""
